"""The error for problems of a model, as opposed to those of a request."""


class ModelError(RuntimeError):
    """A model could not be found, fetched or read; the message says which file and why."""

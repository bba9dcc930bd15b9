"""The error of everything that is wrong with a model, as opposed to a request."""


class ModelError(RuntimeError):
    """A model could not be found, fetched or read; the message says which file and why."""

"""The errors of this library."""

from __future__ import annotations


class ModelError(RuntimeError):
    """A model could not be found, fetched or read; the message says which file and why."""


class TemplateProcessError(ModelError):
    """No process could be started to render a chat template, as for want of memory: neither the template is wrong nor what it
    was given."""

"""The error that every reader of data sets raises."""


class DataError(ValueError):
    """A data set that cannot be used; the message names the file and the rule."""

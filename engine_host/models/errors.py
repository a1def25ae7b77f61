"""What can go wrong with models, as sentences for the operator."""


class ModelError(Exception):
    """Anything about stored models; its text is a sentence that says what to do."""


class ModelNotFoundError(ModelError):
    """No stored model and no folder goes by that name."""


class ModelImportError(ModelError):
    """The source can't become a stored model. Nothing of it was kept."""

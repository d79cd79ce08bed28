"""`LakeError`, and the errors that belong to no part in particular."""


class LakeError(Exception):
    """Base of all errors of this project.

    Args:
        problem: What is wrong, with the value, as one sentence.
        remedy: What to do, as a sentence or a command.
    """

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem}\n  → {remedy}")
        self.problem = problem
        self.remedy = remedy


class ConfigurationError(LakeError):
    """A declaration or a setting is invalid."""


class UsageError(LakeError):
    """A command or request has an invalid argument, or names something that does not exist."""


class ServiceError(LakeError):
    """A local service, or something that it needs, is not available."""


class ErasureStopped(LakeError):
    """An erasure did not finish. It stays recorded as requested."""


class ServingError(LakeError):
    """Serving refuses a request. `lake_assets.serving.errors` has the subclasses."""

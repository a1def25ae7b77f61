"""Why a request is not served: one exception for every rule, told to the client as OpenAI's error JSON."""

import math
from collections.abc import Mapping
from http import HTTPStatus

_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    408: "TimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


class Refusal(Exception):
    """A request is refused or ended by a rule. `str()` is the sentence: what happened, the limit, what to do.

    `status` is the HTTP status; `kind` the error's `type`; `retry_after_s` becomes `Retry-After` in whole seconds;
    `headers` are sent beside it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind or _KINDS.get(status) or HTTPStatus(status).phrase
        self.param = param
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))

"""A refusal of the gateway in the form that vLLM's serving classes pass on with its status."""

from http import HTTPStatus

from vllm.exceptions import GenerationError

from engine_host.gateway.refusal import Refusal


class RefusedError(GenerationError):
    """A rule of the gateway has refused or ended the request; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.status_code = HTTPStatus(refusal.status)
        self.refusal = refusal

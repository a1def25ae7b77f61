"""Carrying one request from an engine that ends to the next one.

What has been produced is submitted again behind the prompt, and the text goes on where it stopped: bytes of half a
character and the beginning of a stop string that the old engine held back are not lost.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Literal

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from engine_host.gateway.ticket import Ticket

Resumption = Literal["exact", "continued", "drained"]

CLEARED_AFTER_TOKENS = 16
"""Tokens a request must produce beyond the point where an engine died before that death is no longer held against it.
What kills an engine does so when it is computed again, in the first steps."""

# State of the sampler or of the reply that a prompt can't carry over.
_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
_STATEFUL = (
    "logprobs",
    "logprob_token_ids",
    "structured_outputs",
    "bad_words",
    "thinking_token_budget",
    "repetition_detection",
    "extra_args",
    "trace_decode_token_ids",
)


def how_to_resume(prompt: Any, params: SamplingParams, options: Mapping[str, Any]) -> Resumption:
    """How a request that has produced tokens goes on in another engine.

    exact: greedy, so the next token depends on the tokens before it only (in float32 the text is the same; in 16 bits
    a near-tie may fall the other way, as between two batch sizes). continued: sampled without a seed, from the same
    distribution. drained: ends where it began, since something can't be carried over: the grammar's state, penalties
    over what was produced, logprobs, several sequences, images, an adapter, or a seed, which promises that the same
    request gives the same text, and whose generator would begin anew.
    """
    if not (isinstance(prompt, Mapping) and prompt.get("type") == "token"):
        return "drained"
    if params.n != 1 or params.output_kind == RequestOutputKind.CUMULATIVE or options.get("lora_request") is not None:
        return "drained"
    if any(getattr(params, name, None) for name in _STATEFUL) or params.logprobs is not None:
        return "drained"
    if any(getattr(params, name) != neutral for name, neutral in _PENALTIES.items()):
        return "drained"
    if params.temperature == 0:
        return "exact"
    return "drained" if params.seed is not None else "continued"


class Carried:
    """One request, whatever engine computes it. `produced` are its output tokens so far."""

    def __init__(
        self, request_id: str, prompt: Any, params: SamplingParams, options: Mapping[str, Any], ticket: Ticket
    ) -> None:
        self.request_id = request_id
        self.ticket = ticket
        self.resumption = how_to_resume(prompt, params, options)
        self.produced: list[int] = []
        self.cutting = False
        """Its engine is being taken away: the abort that follows is no end."""
        self.interrupted = False
        """It has been taken off its engine, and has not ended."""
        self.deaths = 0
        """Engines that died while they worked on it and that it has not outlived since."""
        self.submissions = 0
        """How often it has entered an engine."""
        self.poison = False
        """They died of it."""
        self.abandoned = False
        """No other engine will do."""
        self._died_at = 0
        self._prompt = prompt
        self._params = params
        self._options = dict(options)
        self._sent = 0
        self._cached_tokens: int | None = None
        self._detokenizer: Any = None
        self.stopped = False
        """It has met a stop string, for which a later engine does not look: that one is still computing it."""

    @property
    def resumable(self) -> bool:
        """Whether another engine can go on with it now: one that has produced nothing only has to begin."""
        return not self.abandoned and (self.resumption != "drained" or not self.produced)

    def died(self) -> None:
        """Its engine has died."""
        self.deaths += 1
        self._died_at = len(self.produced)

    def submission(self, tokenizer: Any, max_model_len: int) -> tuple[Any, SamplingParams, dict[str, Any]] | None:
        """Prompt, parameters and options for the next engine, of `max_model_len` tokens; `None` if it has no room."""
        self.interrupted = self.cutting = False
        self.submissions += 1
        if not self.produced:
            self._detokenizer = None  # It begins anew, and the next engine makes the text.
            return self._prompt, self._params, self._options
        ids = [*self._prompt["prompt_token_ids"], *self.produced]
        if self._detokenizer is None and self._params.detokenize:
            self._detokenizer = self._replayed(tokenizer)
        if len(ids) >= max_model_len:
            return None
        params = self._params.clone()
        count = len(self.produced)
        if params.max_tokens is not None:
            params.max_tokens -= count
        params.min_tokens = max(0, params.min_tokens - count)
        params.stop, params.prompt_logprobs = [], None
        params.detokenize = False
        prompt = {name: value for name, value in self._prompt.items() if name not in ("prompt", "prompt_token_offsets")}
        options = {name: value for name, value in self._options.items() if name != "prompt_text"}
        return {**prompt, "prompt_token_ids": ids}, params, options

    def take(self, output: RequestOutput, tokenizer: Any) -> bool:
        """Take in what an engine put out, and make it the request's own; whether it is to be passed on.

        An output that ended because the engine is taken away loses its end, and the text that only the end let out.
        """
        if self.resumption == "drained":
            self._take_ids(output)
            self.interrupted = self.cutting and _aborted(output)
            return not self.interrupted
        part = output.outputs[0]
        self.produced.extend(part.token_ids)
        if self.deaths and len(self.produced) >= self._died_at + CLEARED_AFTER_TOKENS:
            self.deaths = 0
        if self._detokenizer is not None:
            self._go_on(output, part)
        elif self.cutting and _aborted(output) and self._params.detokenize:
            self._detokenizer = self._replayed(tokenizer)
            part.text = self._detokenizer.output_text[self._sent : self._detokenizer._last_output_text_offset]
        if self.cutting and _aborted(output):
            self.interrupted = True
            output.finished, part.finish_reason = False, None
        self._sent += len(part.text)
        if self._cached_tokens is None:
            self._cached_tokens = output.num_cached_tokens
        return bool(part.token_ids or part.text or not self.interrupted)

    def full(self) -> RequestOutput:
        """The end of a request that no longer fits into the context of the engine that goes on."""
        text = ""
        if self._detokenizer is not None:
            text = self._detokenizer.get_next_output_text(True, True)
        part = CompletionOutput(0, text, [], None, None, finish_reason="length")
        ids = self._prompt["prompt_token_ids"]
        return RequestOutput(self.request_id, None, ids, None, [part], True, num_cached_tokens=self._cached_tokens)

    def _take_ids(self, output: RequestOutput) -> None:
        for part in output.outputs:
            # Only whether there are any matters: it is never submitted again.
            self.produced.extend(part.token_ids)

    def _go_on(self, output: RequestOutput, part: CompletionOutput) -> None:
        """Give an output of a later engine, which has neither text nor the first one's prompt, both of them."""
        detokenizer = self._detokenizer
        ids = list(part.token_ids)
        before = detokenizer.num_output_tokens()
        stopped = detokenizer.update(ids, part.finish_reason == "stop")
        if stopped is not None:
            del ids[detokenizer.num_output_tokens() - before :]
            part.token_ids, part.finish_reason, part.stop_reason = ids, "stop", stopped
            output.finished = self.stopped = True
        ended = output.finished and not (self.cutting and _aborted(output))
        part.text = detokenizer.get_next_output_text(ended, True)
        output.prompt_token_ids = self._prompt["prompt_token_ids"]
        output.num_cached_tokens = self._cached_tokens

    def _replayed(self, tokenizer: Any) -> Any:
        """A detokenizer in the state in which the ended engine's was after the last token."""
        request = SimpleNamespace(
            request_id=self.request_id,
            sampling_params=self._params,
            prompt_token_ids=self._prompt["prompt_token_ids"],
            prompt_embeds=None,
        )
        detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
        detokenizer.update(list(self.produced), False)
        detokenizer.get_next_output_text(False, True)
        return detokenizer


def _aborted(output: RequestOutput) -> bool:
    return bool(output.finished) and any(part.finish_reason == "abort" for part in output.outputs)

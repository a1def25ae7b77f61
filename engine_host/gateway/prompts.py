"""How long prompts and replies may be: the rules of `[gateway.prompts]` over a decoded request body.

Limits are held against each prompt; `/v1/completions` takes several in one request. Bodies are not validated yet when
they come here: what has another type than the API says is passed over, and vLLM refuses it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine_host.gateway.refusal import Refusal
from profiles.gateway import Prompts

Body = Mapping[str, Any]
OverSoft = Literal["allow", "long-queue", "reject", "compress"]

PROMPT_HEADER = "X-LLMConsole-Prompt"
MAX_TOKENS_HEADER = "X-LLMConsole-Max-Tokens"

MAX_TOKENS_FIELDS: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/chat/completions/batch": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
"""Where each API says how long the reply may be; of several the first that is set is obeyed."""

_COMPLETION_DEFAULT = 16
"""`max_tokens` of a `/v1/completions` request that names none, by OpenAI's API."""

_TEXT_FIELDS = ("text", "content", "output", "thinking", "refusal")
"""Fields of a message or content part that hold text, or parts that do."""

_PLAIN_FIELDS = frozenset({"role", "type", "name", "id", "status", "content", "text"})
_NOT_PLAIN = (
    "tools",
    "functions",
    "documents",
    "suffix",
    "prompt_embeds",
    "previous_response_id",
    "previous_input_messages",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "output_config",
    "response_format",
)
"""Fields by which the chat template, or vLLM, may add text of unknown length."""

_EXPANSION = 11
"""By how much normalization lengthens UTF-8 text at most (NFKC; 3 for NFC), by Unicode's normalization FAQ."""


@dataclass(frozen=True, slots=True)
class TemplateCost:
    """Most tokens that a model's chat template adds: once, and for each message."""

    base: int
    per_message: int


async def measure_template(count: Callable[[Body], Awaitable[int | None]]) -> TemplateCost | None:
    """What the chat template adds, from two counts of chat bodies; `None` for a model without one.

    A message counts twice: roles differ in what they add, and a sentencepiece tokenizer puts a space before each text.
    """
    user, assistant = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
    one = await count({"messages": [user]})
    three = await count({"messages": [user, assistant, user]})
    return None if one is None or three is None else TemplateCost(one, three - one)


def texts_of(body: Body) -> Iterator[str]:
    """All prompt text of a chat, completions, responses or messages body: contents, prompts, instructions and tools."""
    for field in ("messages", "prompt", "suffix", "input", "system", "instructions"):
        yield from _texts(body.get(field))
    yield from _strings(body.get("tools"))
    yield from _strings(body.get("functions"))


def surely_over(body: Body, limit_tokens: int, longest_token_chars: int) -> bool:
    """Whether a prompt is over the limit whatever the tokenizer makes of it, known from its length in characters.

    A text of n characters has at least n / `longest_token_chars` tokens, where that is the longest entry of the
    vocabulary: in a byte-level one an entry's characters stand for bytes, of which a character of text has at least
    one. Left out is what templates may leave out: assistant turns (older thinking is dropped) and tools. A normalizer
    that removes text (collapses spaces, composes accents) breaks the rule; vLLM refuses by the same one
    (`TokenizeParams._text_len_check`), there against the context length.
    """
    if body.get("truncate_prompt_tokens") is not None:
        return False
    most = limit_tokens * longest_token_chars
    if (prompt := body.get("prompt")) is not None:
        return any(len(each) > (most if isinstance(each, str) else limit_tokens) for each in _each_prompt(prompt))
    chars = 0
    for field in ("messages", "input", "system", "instructions"):
        value = body.get(field)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict) and each.get("role") == "assistant":
                continue
            for text in _texts(each):
                chars += len(text)
                if chars > most:
                    return True
    return False


def surely_within(body: Body, limit_tokens: int, template: TemplateCost | None) -> bool:
    """Whether every prompt is within the limit whatever the tokenizer makes of it, so that it need not be counted.

    Text has at most one token for each UTF-8 byte: a byte-level tokenizer's every token covers one or more, and
    sentencepiece falls back to bytes. Text beyond ASCII may grow when it is normalized before. Special tokens written
    out in the text only make it fewer; those that are added are in `template`. Where a prompt holds more than text
    (images, tools, an earlier response) the answer is False.
    """
    if template is None or any(body.get(field) for field in _NOT_PLAIN):
        return False
    if (prompt := body.get("prompt")) is not None:
        left = limit_tokens - template.base
        return all(_most_tokens(each, left) <= left for each in _each_prompt(prompt))
    left = limit_tokens - template.base
    for field in ("messages", "input", "system", "instructions"):
        value = body.get(field)
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            if not _is_plain(each):
                return False
            left -= template.per_message
            for text in _texts(each):
                left -= _most_tokens(text, left)
            if left < 0:
                return False
    return True


def check_not_empty(body: Body) -> None:
    """Raise `Refusal` 400 for a prompt that holds neither text nor tokens nor anything else, such as an image."""
    if "prompt" in body and not body.get("prompt_embeds"):
        prompt = body["prompt"]
        if prompt is not None and (not prompt or not all(_each_prompt(prompt))):
            raise _empty("prompt")
    for field in ("messages", "input"):
        value = body.get(field)
        if isinstance(value, list) and value and isinstance(value[0], list):
            conversations = value
        elif isinstance(value, list | str):
            conversations = [value]
        else:
            continue
        if not all(_has_content(each) for each in conversations):
            raise _empty(field)


def check_hard(count: int, rules: Prompts, context: int) -> None:
    """Raise `Refusal` with the status `over_hard` for a prompt of `count` tokens over the hard limit.

    `context` is the model's context length in tokens; a count above it is only a lower bound (see `count_tokens`).
    """
    limit = hard_limit(rules, context)
    if count <= limit:
        return
    raise Refusal(rules.over_hard, _too_long(count, limit, context), param="prompt")


def refuse_over(rules: Prompts, context: int, longest_token_chars: int) -> Refusal:
    """The refusal of a prompt that is `surely_over` the hard limit."""
    limit = hard_limit(rules, context)
    return Refusal(
        rules.over_hard,
        f"The prompt has more than {limit * longest_token_chars:,} characters, which is more than {limit:,} tokens, "
        "the most this server takes. Shorten it.",
        param="prompt",
    )


def hard_limit(rules: Prompts, context: int) -> int:
    """The longest prompt in tokens: never more than the context length."""
    return context if rules.hard_limit is None else min(rules.hard_limit, context)


def over_soft(count: int, rules: Prompts) -> OverSoft:
    """What becomes of a prompt of `count` tokens that is within the hard limit."""
    return "allow" if rules.soft_limit is None or count <= rules.soft_limit else rules.over_soft


def refuse_soft(count: int, rules: Prompts, context: int, why: str = "") -> Refusal:
    """The refusal of a prompt over the soft limit; `why` is a sentence, as for why it could not be compressed."""
    limit = rules.soft_limit if rules.soft_limit is not None else hard_limit(rules, context)
    return Refusal(rules.over_hard, f"{_too_long(count, limit, context)} {why}".strip(), param="prompt")


def max_tokens_of(path: str, body: Body) -> tuple[str, int] | None:
    """The field that says how long the reply may be, and its value; `None` where the request names none."""
    for field in MAX_TOKENS_FIELDS.get(path, ()):
        value = body.get(field)
        if value is not None:
            return (field, value) if isinstance(value, int) and not isinstance(value, bool) else None
    return None


def check_reply(max_tokens: int, rules: Prompts, field: str = "max_tokens") -> int:
    """The reply length that is granted. Raises `Refusal` 400 naming both where the profile refuses a longer one."""
    cap = rules.max_tokens
    if cap is None or max_tokens <= cap:
        return max_tokens
    if rules.over_max_tokens == "clamp":
        return cap
    raise Refusal(
        400, f"{field} is {max_tokens:,}; this server allows at most {cap:,} tokens in a reply. Ask for fewer.",
        param=field,
    )  # fmt: skip


def cap_reply(path: str, body: dict[str, Any], rules: Prompts, context: int) -> tuple[dict[str, Any], str | None]:
    """The body with its reply bounded by the cap, and the value of `MAX_TOKENS_HEADER` where that changed it.

    A request that names no length is given the cap, unless its default is lower. Raises `Refusal` 400 as `check_reply`.
    """
    cap, fields = rules.max_tokens, MAX_TOKENS_FIELDS.get(path, ())
    if cap is None or not fields:
        return body, None
    named = max_tokens_of(path, body)
    if named is not None:
        field, asked = named
        granted = check_reply(asked, rules, field)
        return (body, None) if granted == asked else ({**body, field: granted}, f"clamped {asked}->{granted}")
    default = _COMPLETION_DEFAULT if path == "/v1/completions" else context
    if cap >= default or any(body.get(field) is not None for field in fields):
        return body, None
    return {**body, fields[0]: cap}, f"set to {cap}"


def _too_long(count: int, limit: int, context: int) -> str:
    counted = f"at least {count:,}" if count > context else f"{count:,}"
    return f"The prompt has {counted} tokens; this server takes at most {limit:,}. Shorten it."


def _empty(field: str) -> Refusal:
    return Refusal(400, f"The prompt is empty: {field!r} holds no text, tokens or other content.", param=field)


def _each_prompt(prompt: Any) -> Iterator[Any]:
    """Each of the prompts of a completions request: a string or a list of token ids."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int)):
        yield prompt
    elif isinstance(prompt, list):
        yield from (each for each in prompt if isinstance(each, str | list))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for field in _TEXT_FIELDS:
            yield from _texts(value.get(field))
        for field in ("tool_calls", "arguments", "input"):
            yield from _strings(value.get(field))


def _strings(value: Any) -> Iterator[str]:
    """Every string below, keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _strings(each)


def _is_plain(value: Any) -> bool:
    """Whether a message or content is text alone."""
    if isinstance(value, list):
        return all(_is_plain(each) for each in value)
    if not isinstance(value, dict):
        return isinstance(value, str)
    parts = value.get("content", "")
    return all(field in _PLAIN_FIELDS or each is None for field, each in value.items()) and (
        parts is None or _is_plain(parts)
    )


def _most_tokens(prompt: Any, limit: int) -> int:
    """Most tokens of a prompt; what is over the limit in characters alone isn't looked at."""
    if not isinstance(prompt, str) or len(prompt) > limit or prompt.isascii():
        return len(prompt)
    return _EXPANSION * len(prompt.encode(errors="surrogatepass"))


def _has_content(value: Any) -> bool:
    """Whether a message list, message, part or string holds anything; what has another shape counts as something."""
    if isinstance(value, str | list):
        return bool(value) and (isinstance(value, str) or any(_has_content(each) for each in value))
    if not isinstance(value, dict):
        return value is not None
    if "text" in value and set(value) <= _PLAIN_FIELDS | {"cache_control", "annotations"}:
        return _has_content(value["text"])
    if "content" in value and value.get("type", "message") == "message" and not value.get("tool_calls"):
        return _has_content(value["content"])
    return True

"""How much of a prompt others began with."""

from hypothesis import given
from hypothesis import strategies as st

from engine_host.gateway.prefixes import LAST, LENGTH, Prefixes


def test_the_longest_of_the_last_prompts_beginnings_counts() -> None:
    prefixes = Prefixes()
    found = [prefixes.shared(each) for each in ([1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 7, 8], [5], [], [1, 2, 3, 4])]
    assert found == [None, 2, 3, 0, 0, 4]


def test_only_the_last_prompts_and_only_their_beginnings_are_compared() -> None:
    prefixes = Prefixes()
    prefixes.shared([7] * 5)
    for _ in range(LAST):
        prefixes.shared([1] * (LENGTH + 100))
    assert prefixes.shared([7] * 5) == 0
    assert prefixes.shared([1] * (LENGTH + 50)) == LENGTH


@given(st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=8))
def test_it_is_what_comparing_token_by_token_finds(prompts: list[list[int]]) -> None:
    prefixes = Prefixes()
    for number, prompt in enumerate(prompts):

        def alike(other: list[int], prompt: list[int] = prompt) -> int:
            pairs = enumerate(zip(prompt, other, strict=False))
            return next((at for at, (a, b) in pairs if a != b), min(len(prompt), len(other)))

        expected = max((alike(other) for other in prompts[:number]), default=None)
        assert prefixes.shared(prompt) == expected

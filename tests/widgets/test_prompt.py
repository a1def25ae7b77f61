"""The prompt: what sends, what breaks a line, what comes back."""

from textual import events

from widgets.demo import Demo
from widgets.prompt import PromptArea


class Shown(Demo):
    def __init__(self) -> None:
        self.prompt = PromptArea(placeholder="Ask [b]")
        super().__init__(self.prompt)
        self.sent: list[str] = []

    def on_prompt_area_submitted(self, message: PromptArea.Submitted) -> None:
        self.sent.append(message.text)


async def test_enter_sends_and_clears_and_blank_text_is_not_sent() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        app.prompt.focus()
        await pilot.press("enter", "space", "enter", "h", "i", "enter")
        await pilot.pause()
        assert app.sent == [" hi"]
        assert app.prompt.text == ""


async def test_shift_enter_and_ctrl_j_break_the_line() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        app.prompt.focus()
        await pilot.press("a", "shift+enter", "b", "ctrl+j", "c", "enter")
        await pilot.pause()
        assert app.sent == ["a\nb\nc"]


async def test_up_and_down_at_the_edges_walk_the_history_and_bring_the_draft_back() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        app.prompt.focus()
        await pilot.press("a", "enter", "b", "enter", "d", "ctrl+j", "e")
        await pilot.press("up")
        assert app.prompt.text == "d\ne"
        await pilot.press("up")
        assert app.prompt.text == "b"
        await pilot.press("up", "up")
        assert app.prompt.text == "a"
        await pilot.press("down", "down")
        assert app.prompt.text == "d\ne"


async def test_a_paste_is_inserted_and_never_sent() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        app.prompt.focus()
        app.post_message(events.Paste("one\r\ntwo\rthree [b] \x1b[31m\n"))
        await pilot.pause()
        assert app.sent == []
        assert app.prompt.text == "one\ntwo\nthree [b] \x1b[31m\n"
        assert "␛[31m" in app.prompt.get_line(2).plain


async def test_enter_right_behind_fast_typing_sends_all_of_it() -> None:
    app = Shown()
    async with app.run_test() as pilot:
        app.prompt.focus()
        await pilot.pause()
        for character in "hello":
            app.post_message(events.Key(character, character))
        app.post_message(events.Key("enter", "\r"))
        await pilot.pause()
        assert app.sent == ["hello"]

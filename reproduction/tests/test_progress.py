"""Progress in a log: no long silence, and what is said is what is going on."""

import io
import time

from rich.console import Console

from unitvar_reproduction.progress import LogConsole, duration, note, steps


def test_a_log_is_told_what_is_going_on_after_a_silence() -> None:
    file = io.StringIO()
    console = LogConsole(file=file, width=80)
    with console.alive(silence=0.05):
        for step in steps([1, 2, 3], "counting", console):
            deadline = time.monotonic() + 20
            while f"counting: {step - 1} of 3 done (" not in file.getvalue():
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_a_log_that_is_written_to_is_left_alone() -> None:
    file = io.StringIO()
    console = LogConsole(file=file, width=80)
    with console.alive(silence=60):
        console.print("a line")
        note(console, "never said")
    assert file.getvalue() == "a line\n"


def test_steps_do_not_need_a_console_that_speaks() -> None:
    assert list(steps([1, 2], "x", Console(quiet=True))) == [1, 2]


def test_a_terminal_and_a_quiet_console_get_no_such_lines() -> None:
    for options in ({"force_terminal": True}, {"quiet": True}):
        file = io.StringIO()
        console = LogConsole(file=file, **options)  # type: ignore[arg-type]
        with console.alive(silence=0.01):
            time.sleep(0.1)
        assert "at work" not in file.getvalue()


def test_durations_are_written_as_people_say_them() -> None:
    assert [duration(s) for s in (4.4, 65, 3720)] == ["4 s", "1 min 05 s", "1 h 02 min"]

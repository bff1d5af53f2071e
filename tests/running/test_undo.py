"""Every step that puts something back runs, whatever becomes of the others."""

import threading
from collections.abc import Callable

import pytest

from unitvar.running.undo import Undo, undoing


class Recording:
    """Steps that note that they ran; some fail, so many times."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def step(self, name: str, error: BaseException | None = None, times: int = 1) -> Callable[[], None]:
        left = [error] * times

        def run() -> None:
            self.ran.append(name)
            if left and (failure := left.pop()) is not None:
                raise failure

        return run


def test_all_steps_run_in_reverse_and_one_that_fails_is_tried_again_after_the_others() -> None:
    record = Recording()
    with Undo() as undo:
        for name, error in (("a", None), ("b", OSError("once")), ("c", None)):
            undo.add(record.step(name, error))
    assert record.ran == ["c", "b", "a", "b"]


def test_a_step_that_fails_twice_is_told_and_the_others_have_run() -> None:
    record = Recording()

    def block(error: Exception | None) -> None:
        with Undo() as undo:
            undo.add(record.step("a"))
            undo.add(record.step("b", OSError("for good"), 2))
            undo.add(record.step("c"))
            if error is not None:
                raise error

    with pytest.raises(RuntimeError, match=r"1 of the things .* could not be restored \(OSError: for good\)"):
        block(None)
    with pytest.raises(KeyError) as caught:
        block(KeyError("the block's own"))
    assert "could not be restored" in caught.value.__notes__[0]
    assert record.ran == ["c", "b", "a", "b"] * 2


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_waits_until_all_is_put_back(interrupt: type[BaseException]) -> None:
    record = Recording()

    def block() -> None:
        with Undo() as undo:
            for name, error in (("a", None), ("b", interrupt()), ("c", None)):
                undo.add(record.step(name, error))

    with pytest.raises(interrupt):
        block()
    assert record.ran == ["c", "b", "b", "a"]


def test_after_five_interrupts_the_user_means_it() -> None:
    record = Recording()

    def block() -> None:
        with Undo() as undo:
            undo.add(record.step("a", KeyboardInterrupt(), 5))

    with pytest.raises(KeyboardInterrupt):
        block()
    assert record.ran == ["a"] * 5


def test_what_an_interrupt_leaves_of_a_block_is_put_back_by_the_one_around_it() -> None:
    record = Recording()

    def blocks() -> None:
        with Undo() as outer:
            outer.add(record.step("outer"))
            inner = Undo().__enter__()
            inner.add(record.step("inner"))
            raise KeyboardInterrupt  # the end of the inner block is never reached

    with pytest.raises(KeyboardInterrupt):
        blocks()
    assert record.ran == ["inner", "outer"]


def test_the_outermost_block_is_entered_twice_for_an_interrupt_at_its_end() -> None:
    record = Recording()
    struck: list[int] = []

    class Struck(Undo):
        def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
            struck.append(1)
            if len(struck) == 1:
                raise KeyboardInterrupt
            super().__exit__(kind, error, trace)

    def block() -> None:
        with Struck() as undo, undo:
            undo.add(record.step("a"))

    with pytest.raises(KeyboardInterrupt):
        block()
    assert record.ran == ["a"]


def test_on_failure_means_only_then() -> None:
    record = Recording()
    with Undo(on_failure=True) as undo:
        undo.add(record.step("a"))
    assert record.ran == []

    def fails() -> None:
        with Undo(on_failure=True) as undo:
            undo.add(record.step("a"))
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert record.ran == ["a"]


def test_blocks_of_the_users_may_end_in_any_order() -> None:
    record = Recording()
    first, second = Undo(alone=True), Undo(alone=True)
    first.__enter__()
    second.__enter__()
    first.add(record.step("first"))
    second.add(record.step("second"))
    first.__exit__(None, None, None)
    assert record.ran == ["first"]
    second.__exit__(None, None, None)
    assert record.ran == ["first", "second"]


def test_a_context_manager_that_fails_while_it_is_entered_puts_back_what_it_has_changed() -> None:
    values = [1, 2]

    @undoing()
    def changed(undo: Undo, fail: bool) -> list[int]:
        before = list(values)
        undo.add(lambda: values.__setitem__(slice(None), before))
        values.append(3)
        if fail:
            raise OSError("half-way")
        return values

    with changed(False) as given:
        assert given == [1, 2, 3]
    with pytest.raises(OSError, match="half-way"):
        changed(True).__enter__()
    assert values == [1, 2]


def test_threads_do_not_put_back_each_others_things() -> None:
    record, inside, done = Recording(), threading.Event(), threading.Event()

    def other() -> None:
        with Undo() as undo:
            undo.add(record.step("other"))
            inside.set()
            assert done.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(30)
    with Undo() as undo:
        undo.add(record.step("mine"))
    assert record.ran == ["mine"]
    done.set()
    thread.join()
    assert record.ran == ["mine", "other"]

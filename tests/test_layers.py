"""Imports run one way, and torch's private names stay in one file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "unitvar"

# What each room may import, besides itself and _torch. A room that is not here may not be there.
MAY: dict[str, set[str]] = {
    "_torch": set(),
    "shown": set(),
    "activations": {"shown"},
    "init": {"activations"},
    "running": set(),
    "graph": {"running"},
    "moments": {"activations", "graph", "init", "running", "shown"},
    "planning": {"graph", "init", "moments", "running", "shown"},
    "batchnorm": {"running", "shown"},
    # From batchnorm, the pooled moments of what reaches a layer.
    "flow": {"batchnorm", "graph", "moments", "running", "shown"},
    "expectation": {"graph", "moments", "running", "shown"},
    "plot": {"flow"},
}
ABOVE = {"__main__", "cli", "integrations", "paper"}  # import the library; nothing imports them
LATE = {"plot"}  # what a report's .plot() imports when it is called
ROOT = "__init__"  # the table of contents


def rooms() -> set[str]:
    return {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}


def imported(path: Path) -> Iterator[str]:
    """Walk the names that a file imports, inside functions, too, but for those that may come late."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    late = {id(node) for function in functions for node in ast.walk(function) if _names_only_late(node)}
    for node in ast.walk(tree):
        if id(node) in late:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _names_only_late(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "unitvar" and {a.name for a in node.names} <= LATE


def files(room: str) -> list[Path]:
    folder = SOURCE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [SOURCE / f"{room}.py"]


def needs(room: str) -> set[str]:
    names = [name.split(".") for path in files(room) for name in imported(path)]
    return {name[1] for name in names if name[0] == "unitvar" and len(name) > 1} - {room, "_torch"}


def test_every_room_has_its_line() -> None:
    assert rooms() - ABOVE - {ROOT} == MAY.keys()


@pytest.mark.parametrize("room", MAY)
def test_a_room_imports_only_what_lies_below(room: str) -> None:
    assert needs(room) <= MAY[room]


def test_the_table_has_no_circles() -> None:
    left = dict(MAY)
    while left:
        free = {room for room, may in left.items() if not may & left.keys()}
        assert free, f"{', '.join(sorted(left))} import each other in a circle"
        left = {room: may for room, may in left.items() if room not in free}


# Names of torch's own modules, and attributes of its objects, that begin with an underscore.
PRIVATE = re.compile(
    r"\btorch(\.\w+)*\._(?!_)|\btorch(\.\w+)* import .*\b_[A-Za-z]|\b_C\b|\._cdata\b|\b_schema\b|\b_overloadname\b|"
    r"\b_can_decompose\b|\b_BatchNorm\b|\._version\b|\._(buffers|parameters|modules)\b|\b_orig_mod\b|"
    r"\._forward(_pre)?_hooks\b|\b_post_accumulate_grad_hooks\b|\b_get_fsdp_state\b|\b_fsdp_param_groups\b|"
    r"\b_lazy_init\b|torch\.nn\.parameter import .*\bis_lazy\b"
)


def private_names(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found = ((i, line.strip()) for i, line in enumerate(lines, 1) if PRIVATE.search(line))
    return [f"{path.relative_to(SOURCE)}:{i}: {line}" for i, line in found]


def test_private_names_of_torch_stay_in_one_file() -> None:
    others = [p for room in rooms() - {"_torch"} for p in files(room)]
    assert [name for path in others for name in private_names(path)] == []


def test_the_search_for_private_names_finds_them() -> None:
    """Every kind that the library uses is found where it is used."""
    found = "\n".join(private_names(SOURCE / "_torch.py"))
    for name in ("_subclasses", "_python_dispatch", "_C.", "_cdata", "_schema", "_overloadname", "_buffers", "is_lazy"):
        assert name in found, name


def test_every_private_name_says_where_it_was_tried() -> None:
    tree = ast.parse((SOURCE / "_torch.py").read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [f.name for f in functions if "Tried on " not in (ast.get_docstring(f) or "")] == []


# All that is known of an op is in its rule, or in its schema. Only rule.py writes the namespace before a name.
OPS = ("moments/ops/", "expectation/ops/", "graph/")
NAMESPACE = {"moments/rule.py": ["aten."]}


def op_names(tree: ast.AST) -> list[str]:
    """List what names an op: a string that is such a name or the start of one, and ``torch.ops.aten``."""
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    attributes = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "aten"]
    return [s for s in strings if re.fullmatch(r"aten(\.\w*)+|aten::\w*(\.\w*)?", s)] + attributes


def test_ops_are_named_only_where_their_rules_are() -> None:
    found = {
        str(path.relative_to(SOURCE)): op_names(ast.parse(path.read_text(encoding="utf-8")))
        for path in SOURCE.rglob("*.py")
    }
    others = {path: names for path, names in found.items() if names and not path.startswith(OPS)}
    assert {path: sorted(set(names)) for path, names in others.items()} == NAMESPACE


@pytest.mark.parametrize(
    "code", ['RULES["aten.relu"]', 'RULES[f"aten.{op}"]', '"aten.add.Tensor"', '"aten::add"', "torch.ops.aten.relu"]
)
def test_the_search_for_named_ops_finds_them(code: str) -> None:
    assert op_names(ast.parse(code))


TESTS = Path(__file__).parent
ACROSS = {"attack", "composition"}  # of the whole library, not of one room
LONGEST = 400


def folders(root: Path) -> set[str]:
    return {p.parent.name for p in root.glob("*/__init__.py")}


def test_tests_mirror_the_rooms() -> None:
    assert folders(TESTS) - ACROSS <= folders(SOURCE)
    alone = {room for room in folders(SOURCE) if (TESTS / f"test_{room}.py").exists()}
    assert folders(SOURCE) - folders(TESTS) <= alone


def test_no_test_file_is_too_long_to_read() -> None:
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in TESTS.rglob("*.py")}
    assert {str(p.relative_to(TESTS)): n for p, n in lengths.items() if n > LONGEST} == {}

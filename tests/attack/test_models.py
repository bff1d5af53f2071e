"""A sample of the odd models of `make attack`: those that once failed in a way that told nothing."""

import pytest

from tests.attack.models import odd_models, shaped_models
from tests.attack.peers import PEERS, Peer

pytestmark = [
    pytest.mark.usefixtures("untyped"),
    pytest.mark.filterwarnings("ignore"),  # of TorchScript and of wrappers
]


@pytest.mark.parametrize("label", ["TorchScript, frozen part", "meta", "DistributedDataParallel", "FSDP2"])
def test_an_odd_model_works_or_is_refused_with_a_remedy_and_is_left_as_it_was(label: str) -> None:
    cases = list(odd_models([label]))
    assert cases
    assert [case for case in cases if not case.held] == []


def test_models_of_the_shapes_that_peers_test_work_or_are_refused_with_a_remedy() -> None:
    cases = list(shaped_models(["a parameter made in forward", "an error of its own", "a dict with numbers for keys"]))
    assert cases
    assert [case for case in cases if not case.held] == []


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.peer}: {peer.case}")
def test_a_case_of_a_peer_gives_what_the_docs_say(peer: Peer) -> None:
    if peer.check.__name__ == "_fvcore":
        pytest.importorskip("fvcore")
    assert peer.check()

"""The ranks of a start find each other in a store in which earlier starts have left their keys."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from parallel_epochs.pipeline.run.starts import agree_on_name


def agree(store: dist.Store, num_ranks: int) -> set[str]:
    """The names that the ranks of a start get, each in a thread of its own; the last one comes first."""
    with ThreadPoolExecutor(num_ranks) as pool:
        return set(
            pool.map(
                lambda rank: agree_on_name(store, rank, num_ranks, seconds=20),
                reversed(range(num_ranks)),
            )
        )


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_each_start_has_one_name_of_its_own(num_ranks):
    store = dist.HashStore()
    starts = [agree(store, num_ranks) for _ in range(3)]
    assert [len(names) for names in starts] == [1, 1, 1] and len(set.union(*starts)) == 3


def test_another_number_of_ranks_agrees_too():
    store = dist.HashStore()
    assert [len(agree(store, num_ranks)) for num_ranks in (3, 2, 1, 4)] == [1, 1, 1, 1]


def test_what_killed_ranks_asked_is_no_obstacle():
    store = dist.HashStore()
    for killed in range(3):  # rank 0 may have answered one of them, or none
        with pytest.raises(ValueError, match="rank 0 did not come within 0 s"):
            agree_on_name(store, 1, 3, seconds=0.001)
        if killed == 1:
            store.set(f"answer to {store.get('question of rank 1').decode()}", "an earlier start")
    assert len(agree(store, 3)) == 1


def test_rank_0_answers_a_rank_that_was_killed_while_it_asked_and_came_again():
    store, names = dist.HashStore(), []
    first = threading.Thread(target=lambda: names.append(agree_on_name(store, 0, 2, seconds=20)))
    store.set("question of rank 1", "of a killed process")
    first.start()
    assert store.get(
        "answer to of a killed process"
    )  # waits for rank 0, which goes on to wait for rank 1
    names.append(agree_on_name(store, 1, 2, seconds=20))
    first.join()
    assert names[0] == names[1]


def test_who_does_not_come_is_named():
    with pytest.raises(
        ValueError, match="rank 1, 2 did not come within 0 s.*the same command with resume=auto"
    ):
        agree_on_name(dist.HashStore(), 0, 3, seconds=0.01)

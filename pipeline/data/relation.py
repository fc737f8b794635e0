"""The relation of a graph with several types of nodes whose links are learned: task.relation."""

import difflib
from collections.abc import Mapping, Sequence

# The beginning of a reverse relation's name, as with PyG's ToUndirected.
REVERSE = "rev_"
# Relations that a message lists.
LISTED = 20

Relation = tuple[str, str, str]


def reverses_of(relations: Sequence[Relation]) -> dict[int, int]:
    """Return the number of each reverse relation, with that of the relation that it reverses.

    Args:
        relations: type of the source, name and type of the target of each.
    """
    place = {relation: number for number, relation in enumerate(relations)}
    found = {
        place.get((target, f"{REVERSE}{name}", source)): number
        for number, (source, name, target) in enumerate(relations)
    }
    return {number: reversed_ for number, reversed_ in found.items() if number is not None}


def choose_relation(relations: Sequence[Relation], wanted: object, origin: str) -> int:
    """Find the relation that task.relation names.

    Args:
        relations: all of them, with the reverse ones.
        wanted: the name, or the type of the source, the name and the type of the target; none for the only one.
        origin: where the graph comes from, for messages.

    Returns:
        Its number.

    Raises:
        ValueError: nothing is named and there is not one relation, none or several have the name, or it is a reverse
            relation.
    """
    reverses = reverses_of(relations)
    forward = [relation for number, relation in enumerate(relations) if number not in reverses]
    if wanted is None and len(forward) == 1:
        return list(relations).index(forward[0])
    if wanted is None:
        what = "task=link learns the links of one relation, and"
        raise ValueError(
            f"{what} {origin} has {len(forward):,}. Choose one by task.relation="
            f"{_key(forward[0], forward)}; there are {_listed(forward)}"
            if forward
            else f"{what} {origin} has none"
        )
    found = [number for number, relation in enumerate(relations) if _is_named(relation, wanted)]
    given = show(wanted)
    if not found:
        near = _find_near(wanted, forward)
        meant = (
            f"; did you mean task.relation={near}?" if near else f"; there are {_listed(forward)}"
        )
        raise ValueError(f"task.relation={given}: {origin} has no such relation{meant}")
    own = [number for number in found if number not in reverses]
    if not own:
        raise ValueError(
            f"task.relation={given} is a reverse relation in {origin}. Name the relation that it "
            f"reverses: task.relation={_key(relations[reverses[found[0]]], forward)}"
        )
    if len(own) > 1:
        several = " or ".join(f"task.relation={show(relations[number])}" for number in own[:LISTED])
        raise ValueError(
            f"task.relation={given}: {len(own):,} relations of {origin} have this name. Name the types of "
            f"both ends too: {several}"
        )
    return own[0]


def check_wanted(wanted: object) -> None:
    """Refuse what is neither a name nor three names.

    Raises:
        ValueError: says what is missing.
    """
    if (
        isinstance(wanted, Mapping)
        or isinstance(wanted, Sequence)
        and not isinstance(wanted, str)
        and not (len(wanted) == 3 and all(isinstance(name, (str, int)) for name in wanted))
    ):
        raise ValueError(
            f"task.relation={show(wanted)} is not a relation. Give its name, or the type of the source, "
            "the name and the type of the target, as in task.relation=[user,buys,item]"
        )


def refuse_relation(wanted: object, origin: str) -> None:
    """Refuse the name of a relation for a graph that has none.

    Raises:
        ValueError: one is named.
    """
    if wanted is not None:
        raise ValueError(
            f"task.relation={show(wanted)} is for graphs with several types of nodes, and {origin} has "
            "one. Leave it out"
        )


def show(wanted: object) -> str:
    """Write a relation as a key takes it."""
    return (
        str(wanted)
        if isinstance(wanted, (str, Mapping)) or not isinstance(wanted, Sequence)
        else (f"[{','.join(map(str, wanted))}]")
    )


def _is_named(relation: Relation, wanted: object) -> bool:
    """Tell whether a relation is the one that is wanted; names that YAML reads as numbers count as texts."""
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return [str(name) for name in wanted] == list(relation)
    return str(wanted) == relation[1]


def _key(relation: Relation, relations: Sequence[Relation]) -> str:
    """Write a relation as short as it can be told from others."""
    is_unique = sum(name == relation[1] for _, name, _ in relations) == 1
    return relation[1] if is_unique else show(relation)


def _listed(relations: Sequence[Relation]) -> str:
    more = f" and {len(relations) - LISTED:,} more" if len(relations) > LISTED else ""
    return ", ".join(show(relation) for relation in relations[:LISTED]) + more


def _find_near(wanted: object, relations: Sequence[Relation]) -> str | None:
    """Return the relation whose name, or whose three names, look like those that are wanted."""
    names = [_key(relation, relations) for relation in relations]
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        names = [show(relation) for relation in relations]
    near = difflib.get_close_matches(show(wanted), names, n=1)
    if not near:  # a name that several relations share
        same = difflib.get_close_matches(show(wanted), [name for _, name, _ in relations], n=1)
        near = [
            _key(relation, relations) for relation in relations if same and relation[1] == same[0]
        ]
    return near[0] if near else None

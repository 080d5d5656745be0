from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import pytest

from orca.core.plan import Plan, even_split


def plans(number: int, ranks: int = 6) -> list[Plan]:
    """Return random plans, small shards, empty ones and very uneven ones among them."""
    chance = random.Random(number)
    sizes = (lambda: 0, lambda: 1, lambda: chance.randint(0, 8), lambda: chance.randint(0, 90))
    return [
        Plan(
            tuple(chance.choice(sizes)() for _ in range(chance.randint(1, ranks))),
            batch_size=chance.randint(1, 40),
            drop_last=chance.random() < 0.2,
        )
        for _ in range(number)
    ]


def all_shares(plan: Plan) -> list[tuple[int, ...]]:
    return [plan.shares(step) for step in range(plan.steps)]


def by_sorting(plan: Plan) -> list[tuple[int, ...]]:
    """Return the shares by the definition: all rows sorted by their place on the line, cut into steps."""
    rows = sorted((Fraction(2 * i + 1, 2 * c), r) for r, c in enumerate(plan.counts) for i in range(c))
    rows = rows[: plan.rows]
    steps = [rows[at : at + plan.batch_size] for at in range(0, len(rows), plan.batch_size)]
    return [tuple(sum(r == rank for _, r in step) for rank in range(len(plan.counts))) for step in steps]


def test_shares_follow_the_definition() -> None:
    for plan in plans(150):
        assert all_shares(plan) == by_sorting(plan), plan


def test_every_step_but_the_last_has_exactly_batch_size_rows() -> None:
    for plan in plans(200):
        sums = [sum(shares) for shares in all_shares(plan)]
        assert sums == [plan.rows_in(step) for step in range(plan.steps)], plan
        assert all(rows == plan.batch_size for rows in sums[:-1]), plan
        assert not sums or 1 <= sums[-1] <= plan.batch_size, plan


def test_every_row_is_given_exactly_once() -> None:
    for plan in plans(200):
        given = tuple(map(sum, zip(*all_shares(plan), strict=True))) or (0,) * len(plan.counts)
        assert all(share >= 0 for shares in all_shares(plan) for share in shares), plan
        if plan.drop_last:
            assert sum(given) == plan.rows and all(g <= c for g, c in zip(given, plan.counts, strict=True)), plan
        else:
            assert given == plan.counts, plan


@pytest.mark.parametrize(("ranks", "bound"), [(2, 0.5), (3, 1.0), (8, 4.0)])
def test_ranks_give_in_proportion_to_what_they_hold(ranks: int, bound: float) -> None:
    for plan in plans(200, ranks):
        total, given = sum(plan.counts), [0] * len(plan.counts)
        for step, shares in enumerate(all_shares(plan)):
            given = [g + s for g, s in zip(given, shares, strict=True)]
            used = step * plan.batch_size + plan.rows_in(step)
            for held, so_far in zip(plan.counts, given, strict=True):
                assert abs(so_far - Fraction(held * used, total)) <= bound, (plan, step)


def test_ranks_finish_together() -> None:
    """When a rank gave its last row, another has at most what half a row of the first is worth left, and one more."""
    for plan in plans(200):
        if plan.drop_last:
            continue
        left = list(plan.counts)
        for shares in all_shares(plan):
            before, left = left, [held - share for held, share in zip(left, shares, strict=True)]
            for rank, held in enumerate(plan.counts):
                if held and before[rank] and not left[rank]:
                    for other, rest in enumerate(left):
                        assert rest <= Fraction(plan.counts[other], 2 * held) + 1, plan


def test_equal_shards_give_equally_to_every_step() -> None:
    assert set(all_shares(Plan((30, 30, 30), batch_size=6))) == {(2, 2, 2)}


def test_empty_rank_gives_nothing_but_has_every_step() -> None:
    plan = Plan((0, 7, 0), batch_size=2)
    assert all_shares(plan) == [(0, 2, 0), (0, 2, 0), (0, 2, 0), (0, 1, 0)]
    assert list(plan.slices(0)) == [(0, 0, 2), (0, 0, 2), (0, 0, 2), (0, 0, 1)]


def test_no_rows_at_all_are_no_steps() -> None:
    plan = Plan((0, 0), batch_size=4)
    assert plan.steps == 0 and plan.rows == 0 and list(plan.slices(1)) == []


def test_drop_last_leaves_the_short_step_out() -> None:
    plan = Plan((5, 4), batch_size=4, drop_last=True)
    assert plan.rows == 8 and plan.steps == 2
    assert [sum(shares) for shares in all_shares(plan)] == [4, 4]
    assert Plan((1, 1), batch_size=4, drop_last=True).steps == 0


def test_slices_agree_with_shares() -> None:
    for plan in plans(100):
        shares = all_shares(plan)
        for rank in range(len(plan.counts)):
            slices = list(plan.slices(rank))
            assert [stop - start for start, stop, _ in slices] == [share[rank] for share in shares], plan
            assert [rows for _, _, rows in slices] == [sum(share) for share in shares], plan
            assert all(one[1] == two[0] for one, two in pairwise(slices)), plan
            assert not slices or slices[0][0] == 0, plan


def test_big_counts_do_not_overflow() -> None:
    counts = (3 * 10**12, 10**12, 0, 7)
    plan = Plan(counts, batch_size=4 * 10**9)
    assert plan.steps == 1001 and plan.rows_in(1000) == 7
    middle = plan.shares(500)
    assert sum(middle) == 4 * 10**9 and abs(middle[0] - 3 * 10**9) <= 1 and abs(middle[1] - 10**9) <= 1
    assert sum(plan.shares(1000)) == 7
    steps = (0, 499, 500, 999, 1000)
    assert all(all(share >= 0 for share in plan.shares(step)) for step in steps)


def test_even_split_differs_by_one_row_at_most() -> None:
    for rows in (0, 1, 2, 7, 100):
        for parts in (1, 2, 3, 8):
            ranges = even_split(rows, parts)
            sizes = [stop - start for start, stop in ranges]
            assert len(ranges) == parts and sum(sizes) == rows and max(sizes) - min(sizes) <= 1
            assert ranges[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(ranges))

"""Sharing, packing and grouping."""

from statewise.demo.kinds.words import GOODS, TREASURES
from statewise.demo.wording import Dice, calc, many, plural, solved
from statewise.eval.questions import Question


def equal_shares(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(TREASURES)
    left, right = dice.between(2, 4), dice.between(2, 3)
    packs, size, friends = left * dice.between(1, 4), right * dice.between(2, 6), left * right
    total = calc(packs, "*", size)
    share = calc(total.value, "/", friends)
    return solved(
        dice.choice(
            (
                f"{who} has {many(packs, 'bag')} of {many(size, item)} each and shares all of them equally among "
                f"{friends} friends. How many {plural(item)} does each friend get?",
                f"{friends} friends share {many(packs, 'bag')} of {plural(item)} from {who} equally. A bag holds "
                f"{size}. How many {plural(item)} does one friend get?",
            )
        ),
        f"{who} has {total.of(item)}.",
        f"Each friend gets {share.of(item)}.",
        answer=share,
    )


def shared_rest(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(TREASURES)
    friends, share, kept = dice.between(2, 9), dice.between(2, 15), dice.between(2, 30)
    rest = calc(friends * share + kept, "-", kept)
    each = calc(rest.value, "/", friends)
    return solved(
        dice.choice(
            (
                f"{who} has {many(rest.value + kept, item)}, keeps {kept} and shares the rest equally among "
                f"{friends} friends. How many {plural(item)} does each friend get?",
                f"Of {many(rest.value + kept, item)}, {who} keeps {kept}. The others go to {friends} friends in equal "
                f"parts. How many does each of them get?",
                f"After keeping {kept} of {many(rest.value + kept, item)}, {who} divides what is left among "
                f"{friends} friends. What does each receive?",
            )
        ),
        f"{who} gives away {rest.of(item)}.",
        f"Each friend gets {each.of(item)}.",
        answer=each,
    )


def boxes_to_fill(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(GOODS)
    size, boxes = dice.between(3, 12), dice.between(3, 15)
    full = dice.between(1, boxes - 1)
    needed = calc(size * boxes, "/", size)
    more = calc(needed.value, "-", full)
    return solved(
        dice.choice(
            (
                f"{who} packs {many(size * boxes, item)} into boxes of {size}. {full} of the boxes are already "
                f"packed. How many boxes are still to be packed?",
                f"A box holds {many(size, item)}. {who} has {size * boxes} to pack and has filled "
                f"{many(full, 'box')} so far. How many more boxes will {who.they} fill?",
            )
        ),
        f"All of them take {needed.of('box')}.",
        f"There are {more.of('box')} to go.",
        answer=more,
    )


def teams(dice: Dice) -> Question:
    size, count = dice.between(3, 12), dice.between(2, 12)
    girls = dice.between(2, size * count - 2)
    boys = size * count - girls
    everyone = calc(girls, "+", boys)
    made = calc(everyone.value, "/", size)
    game = dice.choice(("a relay", "volleyball", "a treasure hunt", "a quiz", "rowing"))
    return solved(
        dice.choice(
            (
                f"{girls} girls and {boys} boys form teams of {size} for {game}. How many teams are there?",
                f"For {game}, a class of {girls} girls and {boys} boys is split into teams of {size}. "
                f"How many teams is that?",
                f"A coach makes teams of {size} for {game} out of {girls} girls and {boys} boys. "
                f"How many teams does the coach get?",
            )
        ),
        f"There are {everyone.of('child')}.",
        f"They form {made.of('team')}.",
        answer=made,
    )


def pooled(dice: Dice) -> Question:
    (first, second), item = dice.people(2), dice.choice(TREASURES)
    share, bags = dice.between(3, 20), dice.between(2, 9)
    count = dice.between(2, share * bags - 2)
    total = calc(count, "+", share * bags - count)
    each = calc(total.value, "/", bags)
    return solved(
        dice.choice(
            (
                f"{first} brings {many(count, item)} and {second} {share * bags - count}. They put all of them into "
                f"{bags} equal bags. How many {plural(item)} are in a bag?",
                f"{first} and {second} pool their {plural(item)}, {count} and {share * bags - count}, and fill "
                f"{bags} bags with as many each. How many does a bag hold?",
            )
        ),
        f"Together they have {total.of(item)}.",
        f"A bag holds {each.of(item)}.",
        answer=each,
    )


def crates(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(GOODS)
    crates_, boxes, size = dice.between(2, 9), dice.between(2, 9), dice.between(3, 12)
    packed = calc(crates_, "*", boxes)
    total = calc(packed.value, "*", size)
    return solved(
        dice.choice(
            (
                f"{who} unloads {many(crates_, 'crate')}. Each has {many(boxes, 'box')}, and each box has "
                f"{many(size, item)}. How many {plural(item)} are there?",
                f"A box holds {many(size, item)} and a crate holds {many(boxes, 'box')}. How many {plural(item)} does "
                f"{who} get in {many(crates_, 'crate')}?",
            )
        ),
        f"There are {packed.of('box')}.",
        f"They hold {total.of(item)}.",
        answer=total,
    )


KINDS = (equal_shares, shared_rest, boxes_to_fill, teams, pooled, crates)

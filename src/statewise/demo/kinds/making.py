"""Farms, kitchens, gardens and travellers: several steps in a row."""

from statewise.demo.kinds.words import TREASURES
from statewise.demo.wording import Dice, calc, dollars, many, plural, solved
from statewise.eval.questions import Question


def fence(dice: Dice) -> Question:
    what = dice.choice(("garden", "field", "playground", "yard", "meadow"))
    width, price = dice.between(4, 20), dice.between(2, 9)
    length = width + dice.between(1, 20)
    sides = calc(length, "+", width)
    around = calc(2, "*", sides.value)
    cost = dollars(around.value, "*", price)
    return solved(
        dice.choice(
            (
                f"A rectangular {what} is {length} feet long and {width} feet wide. A fence all around it costs "
                f"${price} a foot. How many dollars does the fence cost?",
                f"Fencing costs ${price} a foot. What does it cost to fence a {what} of {length} by {width} feet on "
                f"all sides?",
            )
        ),
        f"One long and one short side measure {sides.of('foot')}.",
        f"The way around the {what} is {around.of('foot')}.",
        f"The fence costs {cost}.",
        answer=cost,
    )


def tiles(dice: Dice) -> Question:
    room = dice.choice(("kitchen", "bathroom", "hall", "terrace", "porch"))
    length, width, price = dice.between(3, 15), dice.between(3, 12), dice.between(2, 6)
    count = calc(length, "*", width)
    cost = dollars(count.value, "*", price)
    return solved(
        dice.choice(
            (
                f"A {room} floor has {length} rows of {width} tiles. A tile costs ${price}. "
                f"How many dollars do the tiles cost?",
                f"A mason lays {length} rows of {width} tiles on a {room} floor, at ${price} a tile. "
                f"What do they cost together?",
            )
        ),
        f"The floor has {count.of('tile')}.",
        f"They cost {cost}.",
        answer=cost,
    )


def egg_boxes(dice: Dice) -> Question:
    who, size = dice.person(), dice.choice((6, 10, 12))
    hens, each, price = size // 2 * dice.between(1, 8), 2 * dice.between(1, 3), dice.between(2, 9)
    eggs = calc(hens, "*", each)
    boxes = calc(eggs.value, "/", size)
    earned = dollars(boxes.value, "*", price)
    return solved(
        dice.choice(
            (
                f"{who} keeps {many(hens, 'hen')}, and each hen lays {many(each, 'egg')} a week. "
                f"{who.They} packs the eggs in boxes of {size} and sells every box for ${price}. "
                f"How many dollars does {who.they} earn in a week?",
                f"The {many(hens, 'hen')} of {who} lay {many(each, 'egg')} a week each. A box of {size} eggs sells "
                f"for ${price}. How much do the eggs of a week bring?",
            )
        ),
        f"The hens lay {eggs.of('egg')}.",
        f"They fill {boxes.of('box')}.",
        f"{who} earns {earned}.",
        answer=earned,
    )


def flour_for_batches(dice: Dice) -> Question:
    who, cake = dice.person(), dice.choice(("muffin", "cookie", "pancake", "scone", "bread roll"))
    batch, cups, batches = dice.between(6, 24), dice.between(2, 5), dice.between(2, 8)
    have = dice.between(1, cups * batches - 1)
    times = calc(batch * batches, "/", batch)
    need = calc(times.value, "*", cups)
    more = calc(need.value, "-", have)
    return solved(
        dice.choice(
            (
                f"A recipe for {many(batch, cake)} takes {many(cups, 'cup')} of flour. {who} wants to bake "
                f"{many(batch * batches, cake)} and has {many(have, 'cup')} of flour. How many more cups does "
                f"{who.they} need?",
                f"{who} has {many(have, 'cup')} of flour and plans {many(batch * batches, cake)}. It takes "
                f"{many(cups, 'cup')} to make {batch}. How many cups of flour are missing?",
            )
        ),
        f"{who} makes the recipe {times} times.",
        f"That takes {need.of('cup')} of flour.",
        f"{who.They} needs {more} more.",
        answer=more,
    )


def bus_stops(dice: Dice) -> Question:
    what = dice.choice(("bus", "tram", "train", "ferry"))
    start, on = dice.between(20, 70), dice.between(1, 15)
    off, off_again = dice.between(1, 9), dice.between(1, 9)
    first = calc(start, "-", off, "+", on)
    last = calc(first.value, "-", off_again)
    return solved(
        dice.choice(
            (
                f"A {what} set out with {many(start, 'passenger')}. At the first stop {off} got off and {on} got on. "
                f"At the second stop {off_again} got off and nobody got on. "
                f"How many passengers were on the {what} then?",
                f"{many(start, 'passenger')} sat in a {what}. Then {off} left and {on} came in, and later "
                f"{off_again} more left. How many passengers stayed?",
            )
        ),
        f"After the first stop there were {first.of('passenger')}.",
        f"After the second stop there were {last.of('passenger')}.",
        answer=last,
    )


def orchard(dice: Dice) -> Question:
    who, tree = dice.person(), dice.choice(("apple", "cherry", "pear", "plum", "olive")) + " tree"
    rows, length, dead, crop = dice.between(2, 9), dice.between(4, 12), dice.between(1, 7), dice.between(2, 5)
    planted = calc(rows, "*", length)
    alive = calc(planted.value, "-", dead)
    baskets = calc(alive.value, "*", crop)
    return solved(
        dice.choice(
            (
                f"{who} planted {rows} rows of {many(length, tree)}. Frost killed {dead} of them. Every tree left "
                f"bore {many(crop, 'basket')} of fruit. How many baskets did {who.they} pick?",
                f"In the orchard of {who} there were {rows} rows of {many(length, tree)}, but a storm felled {dead}. "
                f"Each of the others gave {many(crop, 'basket')}. How many baskets was that?",
            )
        ),
        f"{who} planted {planted.of(tree)}.",
        f"There were {alive.of('tree')} left.",
        f"They bore {baskets.of('basket')}.",
        answer=baskets,
    )


def twice_as_many_each_day(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(TREASURES)
    monday, given = dice.between(2, 25), dice.between(2, 9)
    tuesday = calc(monday, "*", 2)
    wednesday = calc(tuesday.value, "*", 2)
    total = calc(monday, "+", tuesday.value, "+", wednesday.value)
    left = calc(total.value, "-", given)
    return solved(
        dice.choice(
            (
                f"{who} found {many(monday, item)} on Monday, twice as many on Tuesday, and on Wednesday twice as "
                f"many as on Tuesday. Then {who.they} gave {given} of them to {who.their} sister. "
                f"How many {plural(item)} did {who.they} have left?",
                f"On Monday {who} collected {many(monday, item)}. On Tuesday it was twice that, and on Wednesday "
                f"twice as many as on Tuesday. {who.They} lost {given}. How many remained?",
            )
        ),
        f"On Tuesday {who} found {tuesday.of(item)}.",
        f"On Wednesday {who.they} found {wednesday.of(item)}.",
        f"That made {total.of(item)}.",
        f"{who} had {left.of(item)} left.",
        answer=left,
    )


def legs(dice: Dice) -> Question:
    who = dice.person()
    beast, bird = dice.choice(("cow", "goat", "pig", "horse", "sheepdog")), dice.choice(("hen", "duck", "turkey"))
    beasts, birds = dice.between(1, 20), dice.between(1, 25)
    four, two = calc(beasts, "*", 4), calc(birds, "*", 2)
    total = calc(four.value, "+", two.value)
    return solved(
        dice.choice(
            (
                f"{who} has a farm with {many(beasts, beast)} and {many(birds, bird)}. "
                f"How many legs do the animals have in all?",
                f"How many legs are there in a barn where {who} keeps {many(beasts, beast)} and {many(birds, bird)}?",
            )
        ),
        f"{many(beasts, beast).capitalize()}: {four.of('leg')}.",
        f"{many(birds, bird).capitalize()}: {two.of('leg')}.",
        f"In all that makes {total.of('leg')}.",
        answer=total,
    )


def shelves(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(("book", "jar", "record", "folder", "plate"))
    count, size, more = dice.between(2, 9), dice.between(5, 30), dice.between(2, 60)
    shelved = calc(count, "*", size)
    total = calc(shelved.value, "+", more)
    return solved(
        dice.choice(
            (
                f"{who} has {count} shelves with {many(size, item)} each, and {many(more, item)} in a box. "
                f"How many {plural(item)} does {who.they} have?",
                f"On each of {count} shelves stand {many(size, item)}, and {who} has {more} more elsewhere. "
                f"How many {plural(item)} is that in all?",
            )
        ),
        f"The shelves hold {shelved.of(item)}.",
        f"In all there are {total.of(item)}.",
        answer=total,
    )


KINDS = (
    fence,
    tiles,
    egg_boxes,
    flour_for_batches,
    bus_stops,
    orchard,
    twice_as_many_each_day,
    legs,
    shelves,
)

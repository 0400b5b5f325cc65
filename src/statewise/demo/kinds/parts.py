"""Fractions and percent."""

from statewise.demo.kinds.words import PARTS, TREASURES, WARES
from statewise.demo.wording import Dice, calc, dollars, many, plural, solved
from statewise.eval.questions import Question


def fraction_of_a_group(dice: Dice) -> Question:
    first, second = dice.pick(("swimming", "sailing", "hiking", "fishing", "climbing", "painting"), 2)
    parts, size = dice.between(2, 5), dice.between(3, 20)
    fraction, group, absent = PARTS[parts], parts * size, dice.between(1, size)
    gone = calc(group, "/", parts)
    rest = calc(group, "-", gone.value, "-", absent)
    return solved(
        dice.choice(
            (
                f"There were {many(group, 'child')} at a summer camp. One day {fraction} of them went {first}, "
                f"{many(absent, 'child')} stayed in bed with a cold, and the others went {second}. "
                f"How many children went {second}?",
                f"Of {many(group, 'child')} in a camp, {fraction} went {first} and {absent} were ill. "
                f"The rest went {second}. How many children was that?",
            )
        ),
        f"{gone.of('child')} went {first}.",
        f"That leaves {rest.of('child')} who went {second}.",
        answer=rest,
    )


def given_away(dice: Dice) -> Question:
    (who, first, second), item = dice.people(3), dice.choice(TREASURES)
    parts, size = dice.between(2, 5), dice.between(3, 20)
    had = calc(parts * size, "/", parts)
    kept = calc(parts * size, "-", had.value)
    left = calc(kept.value, "-", dice.between(1, kept.value - 1))
    gift = kept.value - left.value
    return solved(
        dice.choice(
            (
                f"{who} had {many(parts * size, item)}. {who.They} gave {PARTS[parts]} of them to {first} and then "
                f"{gift} to {second}. How many {plural(item)} did {who.they} have left?",
                f"Of {many(parts * size, item)}, {who} gives {PARTS[parts]} to {first}. After that {second} gets "
                f"{gift}. How many {plural(item)} does {who} keep?",
                f"{first} got {PARTS[parts]} of the {many(parts * size, item)} that {who} had, and {second} got "
                f"{gift}. How many were left?",
            )
        ),
        f"{first} gets {had.of(item)}.",
        f"That leaves {kept.of(item)}.",
        f"After the second gift {who} has {left.of(item)}.",
        answer=left,
    )


def pizza(dice: Dice) -> Question:
    who, dish = dice.person(), dice.choice(("pizza", "pie", "cake", "melon"))
    parts = dice.between(2, 5)
    count, slices = dice.between(1, 5), parts * dice.between(2, 4)
    total = calc(count, "*", slices)
    eaten = calc(total.value, "/", parts)
    left = calc(total.value, "-", eaten.value)
    return solved(
        dice.choice(
            (
                f"{who} cuts {many(count, dish)} into {slices} slices each. The guests eat {PARTS[parts]} of all "
                f"slices. How many slices are left?",
                f"For a party {who} has {many(count, dish)}, {slices} slices each. {PARTS[parts].capitalize()} of the "
                f"slices is eaten. How many slices remain?",
            )
        ),
        f"There are {total.of('slice')}.",
        f"The guests eat {eaten.of('slice')}.",
        f"That leaves {left.of('slice')}.",
        answer=left,
    )


def part_of_the_rest(dice: Dice) -> Question:
    first, second = dice.pick(("red", "blue", "green", "yellow", "white"), 2)
    item = dice.choice(("balloon", "tulip", "tile", "flag", "ribbon"))
    one, other = dice.between(2, 4), dice.between(2, 5)
    group = one * other * dice.between(1, 8)
    coloured = calc(group, "/", one)
    rest = calc(group, "-", coloured.value)
    part = calc(rest.value, "/", other)
    return solved(
        dice.choice(
            (
                f"There are {many(group, item)}. {PARTS[one].capitalize()} of them is {first}, and {PARTS[other]} of "
                f"the rest is {second}. How many {plural(item)} are {second}?",
                f"A shop has {many(group, item)}: {PARTS[one]} of them {first}, and of the others {PARTS[other]} "
                f"{second}. How many are {second}?",
            )
        ),
        f"{coloured.of(item)} {'is' if coloured.value == 1 else 'are'} {first}.",
        f"The rest is {rest.of(item)}.",
        f"Of these {part.of(item)} {'is' if part.value == 1 else 'are'} {second}.",
        answer=part,
    )


def whole_from_part(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(TREASURES)
    parts, size = dice.between(2, 6), dice.between(3, 25)
    whole = calc(size, "*", parts)
    rest = calc(whole.value, "-", size)
    return solved(
        dice.choice(
            (
                f"{who} lost {many(size, item)}, which was {PARTS[parts]} of all {who.they} had. "
                f"How many {plural(item)} does {who.they} still have?",
                f"{PARTS[parts].capitalize()} of the {plural(item)} of {who} is {size}. If {who.they} gives those "
                f"away, how many {plural(item)} are left?",
            )
        ),
        f"{who} had {whole.of(item)}.",
        f"Now there are {rest.of(item)}.",
        answer=rest,
    )


def percent_off(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(WARES)
    price, percent = 20 * dice.between(1, 12), 5 * dice.between(1, 15)
    discount = dollars(price, "*", percent, "/", 100)
    pays = dollars(price, "-", discount.value)
    return solved(
        dice.choice(
            (
                f"A {item} costs ${price}. Today it is {percent}% off. How many dollars does {who} pay for it?",
                f"{who} buys a {item} on sale. Its price was ${price}, and it is {percent}% off. "
                f"What does {who.they} pay?",
                f"With {percent}% off, how many dollars does {who} pay for a {item} that costs ${price}?",
            )
        ),
        f"The discount is {discount}.",
        f"So {who} pays {pays}.",
        answer=pays,
    )


def percent_of_a_group(dice: Dice) -> Question:
    group, percent = 20 * dice.between(1, 12), 5 * dice.between(1, 19)
    what = dice.choice(("student", "runner", "member", "guest", "singer", "dancer"))
    having, without = dice.choice(
        (("wearing glasses", "without glasses"), ("with a hat", "without a hat"), ("from abroad", "not from abroad"))
    )
    part = calc(group, "*", percent, "/", 100)
    rest = calc(group, "-", part.value)
    return solved(
        dice.choice(
            (
                f"Of {many(group, what)}, {percent}% are {having}. How many {plural(what)} are {without}?",
                f"There are {many(group, what)}, {percent}% of them {having}. How many are {without}?",
                f"In a hall of {many(group, what)}, {percent}% are {having}. How many {plural(what)} are {without}?",
            )
        ),
        f"The number {having} is {part}.",
        f"That leaves {rest.of(what)} {without}.",
        answer=rest,
    )


def tip(dice: Dice) -> Question:
    who, place = dice.person(), dice.choice(("a cafe", "a diner", "a restaurant", "a bar", "a bistro"))
    bill, percent = 20 * dice.between(1, 12), 5 * dice.between(1, 6)
    extra = dollars(bill, "*", percent, "/", 100)
    total = dollars(bill, "+", extra.value)
    return solved(
        dice.choice(
            (
                f"The bill in {place} is ${bill}. {who} adds a tip of {percent}%. How many dollars does "
                f"{who.they} pay in all?",
                f"{who} eats in {place} for ${bill} and leaves a tip of {percent}%. What does {who.they} pay?",
                f"In {place} {who} gives a tip of {percent}% on a bill of ${bill}. How much is that together?",
            )
        ),
        f"The tip is {extra}.",
        f"In all {who} pays {total}.",
        answer=total,
    )


def price_rise(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(WARES)
    price, percent, count = 20 * dice.between(1, 9), 10 * dice.between(1, 5), dice.between(2, 5)
    rise = dollars(price, "*", percent, "/", 100)
    new = dollars(price, "+", rise.value)
    cost = dollars(new.value, "*", count)
    return solved(
        dice.choice(
            (
                f"A {item} used to cost ${price}. The price has gone up by {percent}%. How many dollars does {who} "
                f"pay for {many(count, item)} now?",
                f"{who} buys {many(count, item)}. One was ${price} last year, and the price has risen by "
                f"{percent}%. How much does {who.they} pay?",
            )
        ),
        f"The price rose by {rise}.",
        f"Now a {item} costs {new}.",
        f"{who} pays {cost}.",
        answer=cost,
    )


KINDS = (
    fraction_of_a_group,
    given_away,
    pizza,
    part_of_the_rest,
    whole_from_part,
    percent_off,
    percent_of_a_group,
    tip,
    price_rise,
)

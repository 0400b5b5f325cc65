"""Kinds that no model of ours is trained on: they ask whether it learned more than the other kinds."""

from statewise.demo.kinds.words import GOODS, TREASURES
from statewise.demo.wording import Dice, calc, dollars, many, plural, solved
from statewise.eval.questions import Question


def third_is_free(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(GOODS)
    count, price = 3 * dice.between(2, 10), dice.between(2, 12)
    free = calc(count, "/", 3)
    paid = calc(count, "-", free.value)
    cost = dollars(paid.value, "*", price)
    return solved(
        f"In a sale every third {item} is free. A {item} costs ${price}, and {who} takes {count} of them. "
        f"How many dollars does {who.they} pay?",
        f"{who} gets {free.of(item)} for free.",
        f"{who.They} pays for {paid.of(item)}.",
        f"That costs {cost}.",
        answer=cost,
    )


def burning_candle(dice: Dice) -> Question:
    hours, rate, rest = dice.between(2, 9), dice.between(2, 6), dice.between(2, 30)
    burnt = calc(hours, "*", rate)
    left = calc(burnt.value + rest, "-", burnt.value)
    where = dice.choice(("church", "tower", "hall", "window", "cave"))
    return solved(
        f"A candle in a {where} is {burnt.value + rest} inches tall and burns down {rate} inches an hour. "
        f"How many inches are left after {many(hours, 'hour')}?",
        f"The candle loses {burnt.of('inch')}.",
        f"There are {left.of('inch')} left.",
        answer=left,
    )


def animal_feed(dice: Dice) -> Question:
    who, beast = dice.person(), dice.choice(("horse", "cow", "goat", "donkey"))
    beasts, daily, days = dice.between(2, 9), dice.between(2, 6), dice.between(3, 12)
    each_day = calc(beasts, "*", daily)
    eaten = calc(each_day.value, "*", days)
    left = calc(eaten.value + (rest := dice.between(3, 50)), "-", eaten.value)
    return solved(
        f"{who} has {eaten.value + rest} pounds of feed for {many(beasts, beast)} that eat {daily} pounds a day each. "
        f"How many pounds are left after {many(days, 'day')}?",
        f"In a day they eat {each_day.of('pound')}.",
        f"In {many(days, 'day')} that is {eaten.of('pound')}.",
        f"There are {left.of('pound')} left.",
        answer=left,
    )


def empty_seats(dice: Dice) -> Question:
    place = dice.choice(("theater", "circus", "cinema", "stadium"))
    rows, seats = dice.between(4, 20), dice.between(5, 12)
    there = calc(rows, "*", seats)
    people = dice.between(3, there.value - 3)
    free = calc(there.value, "-", people)
    return solved(
        f"A {place} has {rows} rows of {seats} seats. {people} people have come. How many seats are empty?",
        f"There are {there.of('seat')}.",
        f"Of these {free} are empty.",
        answer=free,
    )


def child_tickets(dice: Dice) -> Question:
    who, place = dice.person(), dice.choice(("zoo", "museum", "castle", "fair"))
    adults, children, price = dice.between(2, 6), dice.between(2, 9), 2 * dice.between(2, 12)
    half = dollars(price, "/", 2)
    grown, young = dollars(adults, "*", price), dollars(children, "*", half.value)
    total = dollars(grown.value, "+", young.value)
    return solved(
        f"A ticket to the {place} costs ${price}, and children pay half. {who} buys tickets for {adults} adults and "
        f"{many(children, 'child')}. How many dollars does {who.they} pay?",
        f"A child pays {half}.",
        f"The adults pay {grown}.",
        f"The children pay {young}.",
        f"In all that is {total}.",
        answer=total,
    )


def reading_contest(dice: Dice) -> Question:
    (first, second), days = dice.people(2), dice.between(2, 9)
    fast, slow = dice.between(21, 40), dice.between(5, 20)
    more, fewer = calc(fast, "*", days), calc(slow, "*", days)
    lead = calc(more.value, "-", fewer.value)
    return solved(
        f"{first} reads {fast} pages a day and {second} {slow} pages a day. How many pages is {first} ahead after "
        f"{many(days, 'day')}?",
        f"{first} has read {more.of('page')}.",
        f"{second} has read {fewer.of('page')}.",
        f"{first} is {lead.of('page')} ahead.",
        answer=lead,
    )


def collection_grows(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(TREASURES)
    start, weekly, weeks = dice.between(5, 60), dice.between(2, 12), dice.between(2, 12)
    new = calc(weekly, "*", weeks)
    total = calc(start, "+", new.value)
    doubled = calc(total.value, "*", 2)
    return solved(
        f"{who} has {many(start, item)} and finds {weekly} new ones a week for {many(weeks, 'week')}. Then "
        f"{who.their} uncle doubles the collection. How many {plural(item)} does {who.they} have?",
        f"{who} finds {new.of(item)}.",
        f"That makes {total.of(item)}.",
        f"Doubled, that is {doubled.of(item)}.",
        answer=doubled,
    )


def weighed_parcel(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(("brick", "can", "melon", "dictionary", "pumpkin"))
    count, weight, box = dice.between(2, 12), dice.between(2, 9), dice.between(1, 9)
    inside = calc(count, "*", weight)
    whole = calc(inside.value, "+", box)
    trips = calc(2, "*", whole.value)
    return solved(
        f"{who} fills a box that weighs {many(box, 'pound')} with {many(count, item)} of {many(weight, 'pound')} "
        f"each. How many pounds do 2 such boxes weigh?",
        f"The contents weigh {inside.of('pound')}.",
        f"A full box weighs {whole.of('pound')}.",
        f"Both weigh {trips.of('pound')}.",
        answer=trips,
    )


KINDS = (
    third_is_free,
    burning_candle,
    animal_feed,
    empty_seats,
    child_tickets,
    reading_contest,
    collection_grows,
    weighed_parcel,
)

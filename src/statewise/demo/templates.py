"""The word problems: one small function each, listed in `TEMPLATES` at the end.

A template draws its numbers and words from a `Dice`, computes its steps with `calc` and hands the text to
`solved`. To add one, write the function and name it in `TEMPLATES`. Three rules: numbers are drawn so that
every division comes out whole and nothing goes below zero (`calc` refuses the rest); a step is computed,
never typed; a noun after a number goes through `many` or `Step.of`.
"""

from collections.abc import Callable

from statewise.demo.wording import Dice, Person, calc, dollars, many, plural, solved
from statewise.eval.questions import Question

SHE = ("Amara", "Beatriz", "Chloe", "Dana", "Elif", "Freya", "Grace", "Hana", "Ines", "Jun", "Keiko", "Lucia")
HE = ("Arjun", "Bruno", "Callum", "Diego", "Emeka", "Felix", "Goran", "Hugo", "Ivan", "Jamal", "Kofi", "Leo")
PEOPLE = (*(Person(name, "she", "her") for name in SHE), *(Person(name, "he", "his") for name in HE))

GOODS = ("apple", "peach", "notebook", "pencil", "sandwich", "candle", "postcard", "muffin", "toy car")
TREASURES = ("marble", "sticker", "seashell", "stamp", "coin", "button", "bead", "trading card")
# A ware follows "a", never "an".
WARES = ("coat", "tent", "lamp", "backpack", "guitar", "raincoat", "bike helmet", "radio", "kite")


def change_from_bills(dice: Dice) -> Question:
    who, item = dice.choice(PEOPLE), dice.choice(GOODS)
    count, price = dice.between(2, 9), dice.between(2, 12)
    cost = dollars(count, "*", price)
    paid = (cost.value // 20 + 1) * 20
    change = dollars(paid, "-", cost.value)
    return solved(
        f"{who} buys {many(count, item)} at ${price} each and pays with ${paid}. "
        f"How many dollars of change does {who.they} get?",
        f"The {plural(item)} cost {cost}.",
        f"{who} gets {change} back.",
        answer=change,
    )


def two_kinds_of_goods(dice: Dice) -> Question:
    who, (first, second) = dice.choice(PEOPLE), dice.pick(GOODS, 2)
    counts, prices = (dice.between(1, 9), dice.between(1, 9)), (dice.between(2, 9), dice.between(2, 9))
    costs = [dollars(count, "*", price) for count, price in zip(counts, prices, strict=True)]
    total = dollars(costs[0].value, "+", costs[1].value)
    return solved(
        f"At a market, {plural(first)} cost ${prices[0]} each and {plural(second)} cost ${prices[1]} each. "
        f"How many dollars does {who} pay for {many(counts[0], first)} and {many(counts[1], second)}?",
        f"For {many(counts[0], first)} {who} pays {costs[0]}.",
        f"For {many(counts[1], second)} {who.they} pays {costs[1]}.",
        f"Together that is {total}.",
        answer=total,
    )


def percent_off(dice: Dice) -> Question:
    who, item = dice.choice(PEOPLE), dice.choice(WARES)
    price, percent = 20 * dice.between(2, 12), 5 * dice.between(1, 15)
    discount = dollars(price, "*", percent, "/", 100)
    pays = dollars(price, "-", discount.value)
    return solved(
        f"A {item} costs ${price}. Today it is {percent}% off. How many dollars does {who} pay for it?",
        f"The discount is {discount}.",
        f"So {who} pays {pays}.",
        answer=pays,
    )


def fraction_of_a_group(dice: Dice) -> Question:
    first, second = dice.pick(("swimming", "sailing", "hiking", "fishing", "climbing", "painting"), 2)
    parts, size = dice.between(2, 5), dice.between(3, 15)
    fraction = ("half", "a third", "a quarter", "a fifth")[parts - 2]
    group, absent = parts * size, dice.between(1, size)
    gone = calc(group, "/", parts)
    rest = calc(group, "-", gone.value, "-", absent)
    return solved(
        f"There were {many(group, 'child')} at a summer camp. One day {fraction} of them went {first}, "
        f"{many(absent, 'child')} stayed in bed with a cold, and the others went {second}. "
        f"How many children went {second}?",
        f"{gone.of('child')} went {first}.",
        f"That leaves {rest.of('child')} who went {second}.",
        answer=rest,
    )


def equal_shares(dice: Dice) -> Question:
    who, item = dice.choice(PEOPLE), dice.choice(TREASURES)
    left, right = dice.between(2, 4), dice.between(2, 3)
    packs, size, friends = left * dice.between(1, 4), right * dice.between(2, 6), left * right
    total = calc(packs, "*", size)
    share = calc(total.value, "/", friends)
    return solved(
        f"{who} has {many(packs, 'bag')} of {many(size, item)} each and shares all of them equally among "
        f"{friends} friends. How many {plural(item)} does each friend get?",
        f"{who} has {total.of(item)}.",
        f"Each friend gets {share.of(item)}.",
        answer=share,
    )


def ages(dice: Dice) -> Question:
    young, old = dice.pick(PEOPLE, 2)
    age, times, years = dice.between(3, 18), dice.between(2, 4), dice.between(1, 12)
    now = calc(age, "*", times)
    later = calc(now.value, "+", years)
    return solved(
        f"{young} is {age} years old. {old} is {('twice', 'three times', 'four times')[times - 2]} as old. "
        f"How old will {old} be in {many(years, 'year')}?",
        f"Now {old} is {now} years old.",
        f"In {many(years, 'year')} {old.they} will be {later} years old.",
        answer=later,
    )


def weekly_savings(dice: Dice) -> Question:
    who, item = dice.choice(PEOPLE), dice.choice(WARES)
    weekly, weeks, rest = dice.between(8, 25), dice.between(4, 15), dice.between(1, 11)
    saved = dollars(weekly, "*", weeks)
    left = dollars(saved.value, "-", saved.value - rest)
    return solved(
        f"{who} saves ${weekly} every week for {many(weeks, 'week')} and then buys a {item} for "
        f"${saved.value - rest}. How many dollars does {who.they} have left?",
        f"{who} saves {saved}.",
        f"After buying the {item} {who.they} has {left} left.",
        answer=left,
    )


def savings_goal(dice: Dice) -> Question:
    who, item = dice.choice(PEOPLE), dice.choice(WARES)
    have, weekly, weeks = dice.between(5, 60), dice.between(3, 20), dice.between(2, 16)
    price = have + weekly * weeks
    missing = dollars(price, "-", have)
    wait = calc(missing.value, "/", weekly)
    return solved(
        f"{who} wants to buy a {item} that costs ${price}. {who.they.capitalize()} has ${have} and saves "
        f"${weekly} a week. In how many weeks will {who.they} have enough?",
        f"{who} still needs {missing}.",
        f"That takes {wait.of('week')}.",
        answer=wait,
    )


def two_legs_of_a_ride(dice: Dice) -> Question:
    who, (first, second) = dice.choice(PEOPLE), (dice.between(1, 5), dice.between(1, 4))
    fast, slow = dice.between(11, 18), dice.between(6, 10)
    start, end = calc(first, "*", fast), calc(second, "*", slow)
    total = calc(start.value, "+", end.value)
    return solved(
        f"{who} cycles for {many(first, 'hour')} at {fast} miles an hour, then for {many(second, 'hour')} at "
        f"{slow} miles an hour. How many miles does {who.they} cycle?",
        f"At first {who} cycles {start.of('mile')}.",
        f"Then {who.they} cycles {end.of('mile')}.",
        f"In all {who.they} cycles {total.of('mile')}.",
        answer=total,
    )


def there_and_back(dice: Dice) -> Question:
    who, place = dice.choice(PEOPLE), dice.choice(("the coast", "the lake", "the city", "a market", "a farm"))
    out_hours, back_hours = dice.pick((1, 2, 3, 4), 2)
    unit = dice.between(10, 20)
    distance, out_speed, back_speed = unit * out_hours * back_hours, unit * back_hours, unit * out_hours
    out, back = calc(distance, "/", out_speed), calc(distance, "/", back_speed)
    total = calc(out.value, "+", back.value)
    return solved(
        f"{who} drives {distance} miles to {place} at {out_speed} miles an hour and comes home by the same "
        f"road at {back_speed} miles an hour. How many hours does {who.they} drive?",
        f"The way there takes {out.of('hour')}.",
        f"The way back takes {back.of('hour')}.",
        f"Together they take {total.of('hour')}.",
        answer=total,
    )


def fence(dice: Dice) -> Question:
    what = dice.choice(("garden", "field", "playground", "yard", "meadow"))
    width, price = dice.between(4, 20), dice.between(2, 9)
    length = width + dice.between(1, 20)
    sides = calc(length, "+", width)
    around = calc(2, "*", sides.value)
    cost = dollars(around.value, "*", price)
    return solved(
        f"A rectangular {what} is {length} feet long and {width} feet wide. A fence all around it costs "
        f"${price} a foot. How many dollars does the fence cost?",
        f"One long and one short side measure {sides.of('foot')}.",
        f"The way around the {what} is {around.of('foot')}.",
        f"The fence costs {cost}.",
        answer=cost,
    )


def egg_boxes(dice: Dice) -> Question:
    who, size = dice.choice(PEOPLE), dice.choice((6, 10, 12))
    hens, each, price = size // 2 * dice.between(1, 8), 2 * dice.between(1, 3), dice.between(2, 7)
    eggs = calc(hens, "*", each)
    boxes = calc(eggs.value, "/", size)
    earned = dollars(boxes.value, "*", price)
    return solved(
        f"{who} keeps {many(hens, 'hen')}, and each hen lays {many(each, 'egg')} a week. "
        f"{who.they.capitalize()} packs the eggs in boxes of {size} and sells every box for ${price}. "
        f"How many dollars does {who.they} earn in a week?",
        f"The hens lay {eggs.of('egg')}.",
        f"They fill {boxes.of('box')}.",
        f"{who} earns {earned}.",
        answer=earned,
    )


def pages_a_day(dice: Dice) -> Question:
    who, slow, fast = dice.choice(PEOPLE), dice.between(8, 20), dice.between(10, 40)
    days, more_days = dice.between(2, 9), dice.between(2, 7)
    pages = slow * days + fast * more_days
    read = calc(slow, "*", days)
    left = calc(pages, "-", read.value)
    rate = calc(left.value, "/", more_days)
    return solved(
        f"{who} reads {slow} pages a day of a book with {pages} pages. After {many(days, 'day')} {who.they} "
        f"wants to finish it within {more_days} more days. "
        f"How many pages must {who.they} read on each of them?",
        f"{who} has read {read.of('page')}.",
        f"There are {left.of('page')} left.",
        f"{who.they.capitalize()} must read {rate.of('page')} a day.",
        answer=rate,
    )


def overtime(dice: Dice) -> Question:
    who, wage, raised = dice.choice(PEOPLE), dice.between(10, 20), dice.between(22, 30)
    normal, more = 5 * dice.between(4, 8), dice.between(1, 9)
    extra = calc(normal + more, "-", normal)
    base, bonus = dollars(normal, "*", wage), dollars(extra.value, "*", raised)
    total = dollars(base.value, "+", bonus.value)
    return solved(
        f"{who} earns ${wage} an hour for the first {normal} hours of a week and ${raised} for every hour "
        f"after that. How many dollars does {who.they} earn in a week of {normal + more} hours?",
        f"{who} works {extra.of('hour')} of overtime.",
        f"The first {normal} hours bring {base}.",
        f"The overtime brings {bonus}.",
        f"In all {who.they} earns {total}.",
        answer=total,
    )


def flour_for_batches(dice: Dice) -> Question:
    who, cake = dice.choice(PEOPLE), dice.choice(("muffin", "cookie", "pancake", "scone", "bread roll"))
    batch, cups, batches = 4 * dice.between(2, 6), dice.between(2, 4), dice.between(2, 6)
    have = dice.between(1, cups * batches - 1)
    times = calc(batch * batches, "/", batch)
    need = calc(times.value, "*", cups)
    more = calc(need.value, "-", have)
    return solved(
        f"A recipe for {many(batch, cake)} takes {many(cups, 'cup')} of flour. {who} wants to bake "
        f"{many(batch * batches, cake)} and has {many(have, 'cup')} of flour. How many more cups does "
        f"{who.they} need?",
        f"{who} makes the recipe {times} times.",
        f"That takes {need.of('cup')} of flour.",
        f"{who.they.capitalize()} needs {more} more.",
        answer=more,
    )


def bus_stops(dice: Dice) -> Question:
    what = dice.choice(("bus", "tram", "train", "ferry"))
    start, on = dice.between(20, 50), dice.between(1, 9)
    off, off_again = dice.between(1, 9), dice.between(1, 9)
    first = calc(start, "-", off, "+", on)
    last = calc(first.value, "-", off_again)
    return solved(
        f"A {what} set out with {many(start, 'passenger')}. At the first stop {off} got off and {on} got on. "
        f"At the second stop {off_again} got off and nobody got on. "
        f"How many passengers were on the {what} then?",
        f"After the first stop there were {first.of('passenger')}.",
        f"After the second stop there were {last.of('passenger')}.",
        answer=last,
    )


def leaking_tank(dice: Dice) -> Question:
    what = dice.choice(("tank", "pool", "barrel", "trough", "pond"))
    leak, net, minutes = dice.between(1, 6), dice.between(2, 24), dice.between(5, 40)
    gain = calc(net + leak, "-", leak)
    time = calc(net * minutes, "/", gain.value)
    return solved(
        f"An empty {what} holds {many(net * minutes, 'liter')}. A pump brings {many(net + leak, 'liter')} a "
        f"minute, but a crack loses {many(leak, 'liter')} a minute. "
        f"How many minutes does it take to fill the {what}?",
        f"Each minute the {what} gains {gain.of('liter')}.",
        f"It takes {time.of('minute')}.",
        answer=time,
    )


def orchard(dice: Dice) -> Question:
    who, tree = dice.choice(PEOPLE), dice.choice(("apple", "cherry", "pear", "plum", "olive")) + " tree"
    rows, length, dead, crop = dice.between(2, 9), dice.between(4, 12), dice.between(1, 7), dice.between(2, 5)
    planted = calc(rows, "*", length)
    alive = calc(planted.value, "-", dead)
    baskets = calc(alive.value, "*", crop)
    return solved(
        f"{who} planted {rows} rows of {many(length, tree)}. Frost killed {dead} of them. Every tree left "
        f"bore {many(crop, 'basket')} of fruit. How many baskets did {who.they} pick?",
        f"{who} planted {planted.of(tree)}.",
        f"There were {alive.of('tree')} left.",
        f"They bore {baskets.of('basket')}.",
        answer=baskets,
    )


def twice_as_many_each_day(dice: Dice) -> Question:
    who, item = dice.choice(PEOPLE), dice.choice(TREASURES)
    monday, given = dice.between(2, 20), dice.between(1, 9)
    tuesday = calc(monday, "*", 2)
    wednesday = calc(tuesday.value, "*", 2)
    total = calc(monday, "+", tuesday.value, "+", wednesday.value)
    left = calc(total.value, "-", given)
    return solved(
        f"{who} found {many(monday, item)} on Monday, twice as many on Tuesday, and on Wednesday twice as "
        f"many as on Tuesday. Then {who.they} gave {given} of them to {who.their} sister. "
        f"How many {plural(item)} did {who.they} have left?",
        f"On Tuesday {who} found {tuesday.of(item)}.",
        f"On Wednesday {who.they} found {wednesday.of(item)}.",
        f"That made {total.of(item)}.",
        f"{who} had {left.of(item)} left.",
        answer=left,
    )


def average_score(dice: Dice) -> Question:
    who = dice.choice(PEOPLE)
    game = dice.choice(("a quiz", "darts", "basketball", "bowling", "a spelling contest"))
    mean, down, up = dice.between(12, 60), dice.between(1, 9), dice.between(1, 9)
    scores = dice.pick((mean - down, mean + up, mean + down - up), 3)
    total = calc(scores[0], "+", scores[1], "+", scores[2])
    average = calc(total.value, "/", 3)
    return solved(
        f"In three rounds of {game} {who} scored {scores[0]}, {scores[1]} and {scores[2]} points. "
        f"What was {who.their} average score?",
        f"{who} scored {total.of('point')} in all.",
        f"On average that is {average.of('point')} a round.",
        answer=average,
    )


def legs(dice: Dice) -> Question:
    who = dice.choice(PEOPLE)
    beast, bird = dice.choice(("cow", "goat", "pig", "horse")), dice.choice(("hen", "duck"))
    beasts, birds = dice.between(1, 12), dice.between(1, 20)
    four, two = calc(beasts, "*", 4), calc(birds, "*", 2)
    total = calc(four.value, "+", two.value)
    return solved(
        f"{who} has a farm with {many(beasts, beast)} and {many(birds, bird)}. "
        f"How many legs do the animals have in all?",
        f"{many(beasts, beast).capitalize()}: {four.of('leg')}.",
        f"{many(birds, bird).capitalize()}: {two.of('leg')}.",
        f"In all that makes {total.of('leg')}.",
        answer=total,
    )


def films_and_breaks(dice: Dice) -> Question:
    who, films = dice.choice(PEOPLE), dice.between(2, 5)
    film, pause = 5 * dice.between(16, 28), dice.between(5, 20)
    watching, breaks = calc(films, "*", film), calc(films, "-", 1)
    waiting = calc(breaks.value, "*", pause)
    total = calc(watching.value, "+", waiting.value)
    return solved(
        f"{who} watches {films} films of {film} minutes each, with {many(pause, 'minute')} of break between "
        f"one film and the next. How many minutes pass from the first film's start to the last one's end?",
        f"The films take {watching.of('minute')}.",
        f"The number of breaks is {breaks}.",
        f"The waiting takes {waiting.of('minute')}.",
        f"In all {total.of('minute')} pass.",
        answer=total,
    )


TEMPLATES: tuple[Callable[[Dice], Question], ...] = (
    change_from_bills,
    two_kinds_of_goods,
    percent_off,
    fraction_of_a_group,
    equal_shares,
    ages,
    weekly_savings,
    savings_goal,
    two_legs_of_a_ride,
    there_and_back,
    fence,
    egg_boxes,
    pages_a_day,
    overtime,
    flour_for_batches,
    bus_stops,
    leaking_tank,
    orchard,
    twice_as_many_each_day,
    average_score,
    legs,
    films_and_breaks,
)

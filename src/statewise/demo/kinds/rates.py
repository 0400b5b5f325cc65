"""Speed, flow and pace."""

from statewise.demo.wording import Dice, calc, dollars, many, solved
from statewise.eval.questions import Question


def two_legs_of_a_ride(dice: Dice) -> Question:
    who, (first, second) = dice.person(), (dice.between(1, 6), dice.between(1, 5))
    fast, slow = dice.between(11, 18), dice.between(6, 10)
    start, end = calc(first, "*", fast), calc(second, "*", slow)
    total = calc(start.value, "+", end.value)
    return solved(
        dice.choice(
            (
                f"{who} cycles for {many(first, 'hour')} at {fast} miles an hour, then for {many(second, 'hour')} at "
                f"{slow} miles an hour. How many miles does {who.they} cycle?",
                f"On a bike ride {who} does {fast} miles an hour for {many(first, 'hour')} and {slow} miles an hour "
                f"for another {many(second, 'hour')}. How far does {who.they} ride?",
                f"For {many(first, 'hour')} {who} rides {who.their} bike at {fast} miles an hour. Tired, "
                f"{who.they} goes on for {many(second, 'hour')} at {slow} miles an hour. "
                f"How many miles is that in all?",
            )
        ),
        f"At first {who} cycles {start.of('mile')}.",
        f"Then {who.they} cycles {end.of('mile')}.",
        f"In all {who.they} cycles {total.of('mile')}.",
        answer=total,
    )


def there_and_back(dice: Dice) -> Question:
    who, place = dice.person(), dice.choice(("the coast", "the lake", "the city", "a market", "a farm", "the hills"))
    out_hours, back_hours = dice.pick((1, 2, 3, 4, 5), 2)
    unit = dice.between(8, 24)
    distance, out_speed, back_speed = unit * out_hours * back_hours, unit * back_hours, unit * out_hours
    out, back = calc(distance, "/", out_speed), calc(distance, "/", back_speed)
    total = calc(out.value, "+", back.value)
    return solved(
        dice.choice(
            (
                f"{who} drives {distance} miles to {place} at {out_speed} miles an hour and comes home by the same "
                f"road at {back_speed} miles an hour. How many hours does {who.they} drive?",
                f"It is {distance} miles to {place}. {who} drives there at {out_speed} miles an hour and back at "
                f"{back_speed} miles an hour. How many hours does the driving take?",
                f"Going to {place}, {distance} miles away, {who} drives {out_speed} miles an hour; coming back, "
                f"{back_speed} miles an hour. For how many hours is {who.they} on the road?",
            )
        ),
        f"The way there takes {out.of('hour')}.",
        f"The way back takes {back.of('hour')}.",
        f"Together they take {total.of('hour')}.",
        answer=total,
    )


def leaking_tank(dice: Dice) -> Question:
    what = dice.choice(("tank", "pool", "barrel", "trough", "pond"))
    leak, net, minutes = dice.between(1, 6), dice.between(2, 20), dice.between(3, 25)
    gain = calc(net + leak, "-", leak)
    time = calc(net * minutes, "/", gain.value)
    return solved(
        dice.choice(
            (
                f"An empty {what} holds {many(net * minutes, 'liter')}. A pump brings {many(net + leak, 'liter')} a "
                f"minute, but a crack loses {many(leak, 'liter')} a minute. "
                f"How many minutes does it take to fill the {what}?",
                f"Water flows into an empty {what} at {many(net + leak, 'liter')} a minute and leaks out at "
                f"{many(leak, 'liter')} a minute. After how many minutes are {many(net * minutes, 'liter')} in it?",
                f"A {what} for {many(net * minutes, 'liter')} is empty. It gains {many(net + leak, 'liter')} a minute "
                f"from a hose and loses {many(leak, 'liter')} a minute. In how many minutes is it full?",
            )
        ),
        f"Each minute the {what} gains {gain.of('liter')}.",
        f"It takes {time.of('minute')}.",
        answer=time,
    )


def pages_a_day(dice: Dice) -> Question:
    who, slow, fast = dice.person(), dice.between(8, 20), dice.between(10, 30)
    days, more_days = dice.between(2, 9), dice.between(2, 7)
    pages = slow * days + fast * more_days
    read = calc(slow, "*", days)
    left = calc(pages, "-", read.value)
    rate = calc(left.value, "/", more_days)
    return solved(
        dice.choice(
            (
                f"{who} reads {slow} pages a day of a book with {pages} pages. After {many(days, 'day')} {who.they} "
                f"wants to finish it within {more_days} more days. "
                f"How many pages must {who.they} read on each of them?",
                f"A book has {pages} pages. {who} has read {slow} pages a day for {many(days, 'day')}. To be done in "
                f"{more_days} more days, how many pages a day must {who.they} read from now on?",
                f"For {many(days, 'day')} {who} reads {slow} pages a day. The book has {pages} pages, and "
                f"{many(more_days, 'day')} are left to finish it. How many pages a day is that?",
            )
        ),
        f"{who} has read {read.of('page')}.",
        f"There are {left.of('page')} left.",
        f"{who.They} must read {rate.of('page')} a day.",
        answer=rate,
    )


def fuel(dice: Dice) -> Question:
    who, goal = dice.person(), dice.choice(("a wedding", "the sea", "a concert", "the border", "an airport"))
    mileage, gallons, price = dice.between(10, 30), dice.between(2, 12), dice.between(2, 6)
    needed = calc(mileage * gallons, "/", mileage)
    cost = dollars(needed.value, "*", price)
    return solved(
        dice.choice(
            (
                f"{who} drives {mileage * gallons} miles to {goal}. The car goes {mileage} miles on a gallon, and a "
                f"gallon costs ${price}. How many dollars does the fuel cost?",
                f"A gallon of fuel costs ${price} and lasts {mileage} miles. What does {who} pay for a drive of "
                f"{mileage * gallons} miles to {goal}?",
                f"The way to {goal} is {mileage * gallons} miles. {who} has a van that needs a gallon every "
                f"{mileage} miles. At ${price} a gallon, how much does {who.they} spend on fuel?",
            )
        ),
        f"The drive takes {needed.of('gallon')}.",
        f"The fuel costs {cost}.",
        answer=cost,
    )


def two_machines(dice: Dice) -> Question:
    thing = dice.choice(("screw", "bottle", "brick", "poster", "can", "label"))
    old, new, minutes = dice.between(4, 30), dice.between(4, 30), dice.between(2, 12)
    both = calc(old, "+", new)
    made = calc(both.value, "*", minutes)
    return solved(
        dice.choice(
            (
                f"One machine makes {many(old, thing)} a minute and another makes {many(new, thing)} a minute. "
                f"How many do they make together in {many(minutes, 'minute')}?",
                f"In a factory the old machine turns out {many(old, thing)} a minute, the new one "
                f"{many(new, thing)}. Both run for {many(minutes, 'minute')}. How many {thing}s is that?",
                f"Two machines run side by side for {many(minutes, 'minute')}, at {old} and {new} {thing}s a "
                f"minute. How many {thing}s do they make in all?",
            )
        ),
        f"Together they make {both.of(thing)} a minute.",
        f"In {many(minutes, 'minute')} that is {made.of(thing)}.",
        answer=made,
    )


def laps(dice: Dice) -> Question:
    who, place = dice.person(), dice.choice(("pool", "track", "park", "rink"))
    length, rounds, days = 5 * dice.between(4, 20), dice.between(2, 9), dice.between(2, 7)
    daily = calc(length, "*", rounds)
    total = calc(daily.value, "*", days)
    return solved(
        dice.choice(
            (
                f"A lap of the {place} is {length} meters. {who} does {many(rounds, 'lap')} a day. "
                f"How many meters does {who.they} do in {many(days, 'day')}?",
                f"On each of {many(days, 'day')} {who} does {many(rounds, 'lap')} of the {place}, {length} meters "
                f"each. How many meters is that in all?",
                f"{who} trains on {many(days, 'day')} at the {place}: {many(rounds, 'lap')} of {length} meters each "
                f"time. How far does {who.they} go, in meters?",
            )
        ),
        f"Each day {who} does {daily.of('meter')}.",
        f"In {many(days, 'day')} that makes {total.of('meter')}.",
        answer=total,
    )


KINDS = (two_legs_of_a_ride, there_and_back, leaking_tank, pages_a_day, fuel, two_machines, laps)

"""Hours, minutes and days."""

from statewise.demo.wording import Dice, calc, many, solved
from statewise.eval.questions import Question


def films_and_breaks(dice: Dice) -> Question:
    who, films = dice.person(), dice.between(2, 5)
    film, pause = 5 * dice.between(16, 28), dice.between(5, 20)
    watching, breaks = calc(films, "*", film), calc(films, "-", 1)
    waiting = calc(breaks.value, "*", pause)
    total = calc(watching.value, "+", waiting.value)
    return solved(
        dice.choice(
            (
                f"{who} watches {films} films of {film} minutes each, with {many(pause, 'minute')} of break between "
                f"one film and the next. How many minutes pass from the first film's start to the last one's end?",
                f"A film night has {films} films. Each lasts {film} minutes, and between two films {who} makes a "
                f"break of {many(pause, 'minute')}. How many minutes does the night last?",
            )
        ),
        f"The films take {watching.of('minute')}.",
        f"The number of breaks is {breaks}.",
        f"The waiting takes {waiting.of('minute')}.",
        f"In all {total.of('minute')} pass.",
        answer=total,
    )


def week_of_practice(dice: Dice) -> Question:
    who, what = dice.person(), dice.choice(("the piano", "the flute", "the violin", "chess", "the trumpet"))
    daily, weekend = dice.between(10, 60), dice.between(15, 95)
    weekdays = calc(5, "*", daily)
    total = calc(weekdays.value, "+", weekend)
    return solved(
        dice.choice(
            (
                f"{who} practices {what} for {daily} minutes on each of 5 weekdays and for {weekend} minutes on "
                f"Saturday. How many minutes does {who.they} practice in a week?",
                f"From Monday to Friday, 5 days, {who} plays {what} for {daily} minutes a day, and on Sunday for "
                f"{weekend} minutes. How many minutes is that in all?",
                f"On 5 school days {who} spends {daily} minutes each on {what}, at the weekend {weekend} minutes "
                f"more. What is the sum in minutes?",
            )
        ),
        f"On weekdays {who} plays for {weekdays.of('minute')}.",
        f"In all that is {total.of('minute')}.",
        answer=total,
    )


def before_school(dice: Dice) -> Question:
    who, (first, second) = dice.person(), dice.pick(("shower", "breakfast", "dressing", "packing", "reading"), 2)
    times = dice.between(3, 25), dice.between(3, 25)
    used = calc(times[0], "+", times[1])
    left = calc(used.value + dice.between(2, 30), "-", used.value)
    there = used.value + left.value
    return solved(
        dice.choice(
            (
                f"{who} has {there} minutes before the bus comes. {first.capitalize()} takes {times[0]} minutes and "
                f"{second} {times[1]} minutes. How many minutes are left?",
                f"The bus leaves in {there} minutes. {who} needs {times[0]} minutes for {first} and {times[1]} for "
                f"{second}. How many minutes does {who.they} have to spare?",
                f"In the morning {who} spends {times[0]} minutes on {first} and {times[1]} minutes on {second}. "
                f"Of {there} minutes, how many remain?",
            )
        ),
        f"{first.capitalize()} and {second} take {used.of('minute')}.",
        f"That leaves {left.of('minute')}.",
        answer=left,
    )


def rest_of_the_hours(dice: Dice) -> Question:
    who, what = dice.person(), dice.choice(("a trip", "a flight", "a shift", "a concert", "a lesson", "a fair"))
    hours, done = dice.between(2, 9), dice.between(5, 95)
    whole = calc(hours, "*", 60)
    left = calc(whole.value, "-", done)
    return solved(
        dice.choice(
            (
                f"{who} is on {what} that lasts {many(hours, 'hour')}. {done} minutes have passed. "
                f"How many minutes are left?",
                f"Of {what} of {many(hours, 'hour')}, {done} minutes are over. How many minutes must {who} still "
                f"wait for its end?",
                f"After {done} minutes of {what}, {who} asks how many minutes remain. It lasts "
                f"{many(hours, 'hour')} in all. What is the answer?",
            )
        ),
        f"In all it lasts {whole.of('minute')}.",
        f"There are {left.of('minute')} left.",
        answer=left,
    )


def weeks_of_exercise(dice: Dice) -> Question:
    who, what = dice.person(), dice.choice(("push-up", "squat", "sit-up", "jump"))
    sets, size, days = dice.between(2, 6), dice.between(5, 25), dice.between(2, 9)
    daily = calc(sets, "*", size)
    total = calc(daily.value, "*", days)
    return solved(
        dice.choice(
            (
                f"Every day {who} does {sets} sets of {many(size, what)}. How many {what}s does {who.they} do in "
                f"{many(days, 'day')}?",
                f"{who} exercises for {many(days, 'day')}. A day has {sets} sets, and a set has "
                f"{many(size, what)}. How many {what}s are there in all?",
                f"A plan asks {who} for {sets} sets of {many(size, what)} on each of {many(days, 'day')}. "
                f"How many {what}s is that?",
            )
        ),
        f"A day has {daily.of(what)}.",
        f"In {many(days, 'day')} {who} does {total.of(what)}.",
        answer=total,
    )


KINDS = (films_and_breaks, week_of_practice, before_school, rest_of_the_hours, weeks_of_exercise)

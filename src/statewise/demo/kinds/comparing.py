"""Ages, comparisons and averages."""

from statewise.demo.kinds.words import TIMES, TREASURES
from statewise.demo.wording import Dice, calc, many, plural, solved
from statewise.eval.questions import Question


def ages(dice: Dice) -> Question:
    young, old = dice.people(2)
    age, times, years = dice.between(3, 20), dice.between(2, 4), dice.between(2, 12)
    now = calc(age, "*", times)
    later = calc(now.value, "+", years)
    return solved(
        dice.choice(
            (
                f"{young} is {age} years old. {old} is {TIMES[times]} as old. "
                f"How old will {old} be in {many(years, 'year')}?",
                f"{old} is {TIMES[times]} as old as {young}, who is {age}. What will be the age of {old} in "
                f"{many(years, 'year')}?",
                f"In {many(years, 'year')}, how old will {old} be, who is now {TIMES[times]} as old as {young}, aged "
                f"{age}?",
            )
        ),
        f"Now {old} is {now} years old.",
        f"In {many(years, 'year')} {old.they} will be {later} years old.",
        answer=later,
    )


def sum_of_ages(dice: Dice) -> Question:
    (first, second), age, gap = dice.people(2), dice.between(4, 50), dice.between(2, 30)
    other = calc(age, "+", gap)
    total = calc(age, "+", other.value)
    return solved(
        dice.choice(
            (
                f"{first} is {age} years old, and {second} is {gap} years older. What is the sum of their ages?",
                f"{second} is {gap} years older than {first}, who is {age}. How old are they together?",
                f"If {first} is {age} and {second} is {gap} years older than {first}, what do their ages add up to?",
            )
        ),
        f"{second} is {other} years old.",
        f"Together they are {total} years old.",
        answer=total,
    )


def age_before(dice: Dice) -> Question:
    who, ahead, back = dice.person(), dice.between(2, 12), dice.between(2, 9)
    age = dice.between(back + 1, 50)
    now = calc(age + ahead, "-", ahead)
    past = calc(now.value, "-", back)
    return solved(
        dice.choice(
            (
                f"In {many(ahead, 'year')} {who} will be {age + ahead} years old. How old was {who.they} "
                f"{many(back, 'year')} ago?",
                f"{who} will turn {age + ahead} in {many(ahead, 'year')}. What was {who.their} age "
                f"{many(back, 'year')} ago?",
                f"{many(back, 'year')} ago, how old was {who}, who will be {age + ahead} in {many(ahead, 'year')}?",
            )
        ),
        f"Now {who} is {now} years old.",
        f"{many(back, 'year')} ago {who.they} was {past} years old.",
        answer=past,
    )


def more_than(dice: Dice) -> Question:
    (first, second), item = dice.people(2), dice.choice(TREASURES)
    count, more = dice.between(3, 90), dice.between(2, 50)
    other = calc(count, "+", more)
    total = calc(count, "+", other.value)
    return solved(
        dice.choice(
            (
                f"{first} has {many(count, item)}. {second} has {more} more than {first}. How many {plural(item)} do "
                f"they have together?",
                f"{second} owns {more} more {plural(item)} than {first}, who owns {count}. How many is that in all?",
                f"With {more} {plural(item)} more than {first}, {second} is ahead. {first} has {count}. "
                f"How many {plural(item)} are there in all?",
            )
        ),
        f"{second} has {other.of(item)}.",
        f"Together they have {total.of(item)}.",
        answer=total,
    )


def fewer_than(dice: Dice) -> Question:
    (first, second), item = dice.people(2), dice.choice(TREASURES)
    count = dice.between(12, 99)
    fewer = dice.between(2, count - 2)
    other = calc(count, "-", fewer)
    total = calc(count, "+", other.value)
    return solved(
        dice.choice(
            (
                f"{first} collected {many(count, item)} and {second} {fewer} fewer. How many {plural(item)} did they "
                f"collect together?",
                f"{second} has {fewer} fewer {plural(item)} than {first}, who has {count}. How many do both have?",
                f"{first} found {many(count, item)}. {second} found {fewer} fewer than that. What is the sum?",
            )
        ),
        f"{second} has {other.of(item)}.",
        f"Together they have {total.of(item)}.",
        answer=total,
    )


def times_as_many(dice: Dice) -> Question:
    (first, second), item = dice.people(2), dice.choice(TREASURES)
    count, times = dice.between(3, 60), dice.between(2, 5)
    other = calc(count, "*", times)
    gap = calc(other.value, "-", count)
    return solved(
        dice.choice(
            (
                f"{first} has {many(count, item)}, and {second} has {TIMES[times]} as many. How many more "
                f"{plural(item)} does {second} have?",
                f"{second} has {TIMES[times]} as many {plural(item)} as {first}, who has {count}. "
                f"By how many is {second} ahead?",
                f"{first} counts {many(count, item)}. {second} counts {TIMES[times]} as many. What is the difference?",
            )
        ),
        f"{second} has {other.of(item)}.",
        f"That is {gap.of(item)} more.",
        answer=gap,
    )


def chain_of_three(dice: Dice) -> Question:
    (first, second, third), item = dice.people(3), dice.choice(TREASURES)
    count, more, times = dice.between(3, 30), dice.between(2, 20), dice.between(2, 4)
    middle = calc(count, "+", more)
    last = calc(middle.value, "*", times)
    total = calc(count, "+", middle.value, "+", last.value)
    return solved(
        dice.choice(
            (
                f"{first} has {many(count, item)}. {second} has {more} more than {first}, and {third} has "
                f"{TIMES[times]} as many as {second}. How many {plural(item)} do the three have?",
                f"{third} has {TIMES[times]} as many {plural(item)} as {second}, who has {more} more than {first}. "
                f"If {first} has {count}, how many do they have in all?",
            )
        ),
        f"{second} has {middle.of(item)}.",
        f"{third} has {last.of(item)}.",
        f"The three have {total.of(item)}.",
        answer=total,
    )


def growing_tree(dice: Dice) -> Question:
    who, tree = dice.person(), dice.choice(("pine", "birch", "maple", "palm", "willow"))
    height, yearly, years = dice.between(20, 90), dice.between(3, 25), dice.between(2, 9)
    growth = calc(yearly, "*", years)
    then = calc(height, "+", growth.value)
    return solved(
        dice.choice(
            (
                f"{who} plants a {tree} of {height} inches. It grows {yearly} inches a year. How many inches tall "
                f"is it after {many(years, 'year')}?",
                f"A {tree} in the garden of {who} is {height} inches tall and grows {yearly} inches every year. "
                f"How tall will it be in {many(years, 'year')}?",
            )
        ),
        f"The {tree} grows {growth.of('inch')}.",
        f"Then it is {then.of('inch')} tall.",
        answer=then,
    )


def average_score(dice: Dice) -> Question:
    who = dice.person()
    game = dice.choice(("a quiz", "darts", "basketball", "bowling", "a spelling contest"))
    mean, down, up = dice.between(12, 60), dice.between(1, 9), dice.between(1, 9)
    scores = dice.pick((mean - down, mean + up, mean + down - up), 3)
    total = calc(scores[0], "+", scores[1], "+", scores[2])
    average = calc(total.value, "/", 3)
    return solved(
        dice.choice(
            (
                f"In three rounds of {game} {who} scored {scores[0]}, {scores[1]} and {scores[2]} points. "
                f"What was {who.their} average score?",
                f"{who} played {game} and got {scores[0]}, {scores[1]} and {scores[2]} points in three rounds. "
                f"How many points is that on average?",
                f"What is the average of {who} at {game}, after rounds of {scores[0]}, {scores[1]} and {scores[2]} "
                f"points?",
            )
        ),
        f"{who} scored {total.of('point')} in all.",
        f"On average that is {average.of('point')} a round.",
        answer=average,
    )


KINDS = (
    ages,
    sum_of_ages,
    age_before,
    more_than,
    fewer_than,
    times_as_many,
    chain_of_three,
    growing_tree,
    average_score,
)

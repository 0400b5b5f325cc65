"""Wages, savings and debts."""

from statewise.demo.kinds.words import WARES
from statewise.demo.wording import Dice, calc, dollars, many, solved
from statewise.eval.questions import Question


def weekly_savings(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(WARES)
    weekly, weeks, rest = dice.between(8, 25), dice.between(4, 15), dice.between(1, 11)
    saved = dollars(weekly, "*", weeks)
    price = saved.value - rest
    left = dollars(saved.value, "-", price)
    return solved(
        dice.choice(
            (
                f"{who} saves ${weekly} every week for {many(weeks, 'week')} and then buys a {item} for ${price}. "
                f"How many dollars does {who.they} have left?",
                f"For {many(weeks, 'week')} {who} puts ${weekly} a week into a jar. Then {who.they} pays ${price} "
                f"for a {item}. How much money stays in the jar?",
                f"A {item} costs ${price}. {who} buys it after saving ${weekly} a week for {many(weeks, 'week')}. "
                f"How many dollars remain?",
            )
        ),
        f"{who} saves {saved}.",
        f"After buying the {item} {who.they} has {left} left.",
        answer=left,
    )


def savings_goal(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(WARES)
    have, weekly, weeks = dice.between(5, 60), dice.between(3, 20), dice.between(2, 16)
    price = have + weekly * weeks
    missing = dollars(price, "-", have)
    wait = calc(missing.value, "/", weekly)
    return solved(
        dice.choice(
            (
                f"{who} wants to buy a {item} that costs ${price}. {who.They} has ${have} and saves ${weekly} a "
                f"week. In how many weeks will {who.they} have enough?",
                f"A {item} costs ${price}. {who} owns ${have} and can put aside ${weekly} every week. "
                f"How many weeks must {who.they} wait?",
                f"With ${have} in hand and ${weekly} more every week, how many weeks does {who} need to afford a "
                f"{item} for ${price}?",
            )
        ),
        f"{who} still needs {missing}.",
        f"That takes {wait.of('week')}.",
        answer=wait,
    )


def daily_wage(dice: Dice) -> Question:
    who, hours, days, wage = dice.person(), dice.between(2, 9), dice.between(2, 7), dice.between(8, 20)
    worked = calc(hours, "*", days)
    pay = dollars(worked.value, "*", wage)
    return solved(
        dice.choice(
            (
                f"{who} works {many(hours, 'hour')} a day for {many(days, 'day')} and earns ${wage} an hour. "
                f"How many dollars does {who.they} earn?",
                f"At ${wage} an hour, what does {who} earn in {many(days, 'day')} of {many(hours, 'hour')} each?",
                f"A bakery pays {who} ${wage} an hour. {who.They} works on {many(days, 'day')}, "
                f"{many(hours, 'hour')} each time. How much does {who.they} get?",
            )
        ),
        f"{who} works {worked.of('hour')}.",
        f"{who.They} earns {pay}.",
        answer=pay,
    )


def overtime(dice: Dice) -> Question:
    who, wage, raised = dice.person(), dice.between(10, 20), dice.between(22, 30)
    normal, more = 5 * dice.between(4, 8), dice.between(1, 9)
    extra = calc(normal + more, "-", normal)
    base, bonus = dollars(normal, "*", wage), dollars(extra.value, "*", raised)
    total = dollars(base.value, "+", bonus.value)
    return solved(
        dice.choice(
            (
                f"{who} earns ${wage} an hour for the first {normal} hours of a week and ${raised} for every hour "
                f"after that. How many dollars does {who.they} earn in a week of {normal + more} hours?",
                f"Up to {normal} hours a week {who} is paid ${wage} an hour, beyond that ${raised}. "
                f"This week {who.they} worked {normal + more} hours. What is {who.their} pay in dollars?",
                f"{who} worked {normal + more} hours this week. The first {normal} hours pay ${wage} each, the "
                f"others ${raised} each. How much does {who.they} get?",
            )
        ),
        f"{who} works {extra.of('hour')} of overtime.",
        f"The first {normal} hours bring {base}.",
        f"The overtime brings {bonus}.",
        f"In all {who.they} earns {total}.",
        answer=total,
    )


def allowance_and_chores(dice: Dice) -> Question:
    who, chore = dice.person(), dice.choice(("lawn", "window", "car", "bicycle"))
    allowance, count, price = dice.between(5, 40), dice.between(2, 12), dice.between(2, 9)
    earned = dollars(count, "*", price)
    total = dollars(allowance, "+", earned.value)
    verb, past = ("mows", "mowed") if chore == "lawn" else ("cleans", "cleaned")
    return solved(
        dice.choice(
            (
                f"{who} gets ${allowance} of pocket money and ${price} for every {chore} {who.they} {verb}. "
                f"How many dollars does {who.they} have after {many(count, chore)}?",
                f"Besides ${allowance} of pocket money, {who} was paid ${price} for each of {many(count, chore)} "
                f"that {who.they} {past}. How much did {who.they} get?",
                f"{who} {past} {many(count, chore)} at ${price} each and also got ${allowance} from "
                f"{who.their} parents. How many dollars is that in all?",
            )
        ),
        f"The work brings {earned}.",
        f"In all {who} has {total}.",
        answer=total,
    )


def paying_back(dice: Dice) -> Question:
    (debtor, lender), monthly, months = dice.people(2), dice.between(5, 40), dice.between(2, 12)
    paid = dollars(monthly, "*", months)
    debt = paid.value + dice.between(5, 90)
    owed = dollars(debt, "-", paid.value)
    return solved(
        dice.choice(
            (
                f"{debtor} borrowed ${debt} from {lender} and pays back ${monthly} a month. "
                f"How many dollars does {debtor.they} still owe after {many(months, 'month')}?",
                f"{lender} lent {debtor} ${debt}. For {many(months, 'month')} {debtor} has returned ${monthly} each "
                f"month. How much is still owed?",
                f"Of a debt of ${debt} to {lender}, {debtor} pays ${monthly} every month. "
                f"What is left of it, in dollars, after {many(months, 'month')}?",
            )
        ),
        f"{debtor} has paid back {paid}.",
        f"{debtor.They} still owes {owed}.",
        answer=owed,
    )


def two_earners(dice: Dice) -> Question:
    (first, second), wage, more, hours = dice.people(2), dice.between(8, 20), dice.between(1, 9), dice.between(2, 9)
    higher = dollars(wage, "+", more)
    pay, other = dollars(wage, "*", hours), dollars(higher.value, "*", hours)
    total = dollars(pay.value, "+", other.value)
    return solved(
        dice.choice(
            (
                f"{first} earns ${wage} an hour, {second} ${more} an hour more. Both work {many(hours, 'hour')}. "
                f"How many dollars do they earn together?",
                f"{second} is paid ${more} an hour more than {first}, who gets ${wage} an hour. "
                f"What do the two of them earn in {many(hours, 'hour')}?",
                f"In a shop {first} makes ${wage} an hour and {second} makes ${more} more than that. "
                f"After {many(hours, 'hour')} each, how much have they made in all?",
            )
        ),
        f"{second} earns {higher} an hour.",
        f"{first} makes {pay}.",
        f"{second} makes {other}.",
        f"Together they make {total}.",
        answer=total,
    )


KINDS = (weekly_savings, savings_goal, daily_wage, overtime, allowance_and_chores, paying_back, two_earners)

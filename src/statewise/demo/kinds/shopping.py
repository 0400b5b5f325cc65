"""Buying and selling."""

from statewise.demo.kinds.words import GOODS, WARES
from statewise.demo.wording import Dice, calc, dollars, many, plural, solved
from statewise.eval.questions import Question


def single_purchase(dice: Dice) -> Question:
    who, item, count, price = dice.person(), dice.choice(GOODS), dice.between(2, 20), dice.between(2, 15)
    cost = dollars(count, "*", price)
    return solved(
        dice.choice(
            (
                f"One {item} costs ${price}. How many dollars does {who} pay for {many(count, item)}?",
                f"{who} buys {many(count, item)} for ${price} each. How many dollars does {who.they} spend?",
                f"A shop sells {plural(item)} at ${price} apiece, and {who} takes {count} of them. "
                f"How much does {who.they} pay?",
            )
        ),
        f"{who} pays {cost}.",
        answer=cost,
    )


def change_from_bills(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(GOODS)
    count, price = dice.between(2, 12), dice.between(2, 15)
    cost = dollars(count, "*", price)
    paid = (cost.value // 20 + 1) * 20
    change = dollars(paid, "-", cost.value)
    return solved(
        dice.choice(
            (
                f"{who} buys {many(count, item)} at ${price} each and pays with ${paid}. "
                f"How many dollars of change does {who.they} get?",
                f"A stall asks ${price} for every {item}. {who} takes {count} and hands over "
                f"${paid}. How much change does {who.they} receive?",
                f"With ${paid} in {who.their} pocket, {who} buys {many(count, item)} for ${price} apiece. "
                f"How many dollars remain?",
            )
        ),
        f"The {plural(item)} cost {cost}.",
        f"{who} gets {change} back.",
        answer=change,
    )


def two_kinds_of_goods(dice: Dice) -> Question:
    who, (first, second) = dice.person(), dice.pick(GOODS, 2)
    counts, prices = (dice.between(1, 9), dice.between(1, 9)), (dice.between(2, 9), dice.between(2, 9))
    costs = [dollars(count, "*", price) for count, price in zip(counts, prices, strict=True)]
    total = dollars(costs[0].value, "+", costs[1].value)
    return solved(
        dice.choice(
            (
                f"At a market, {plural(first)} cost ${prices[0]} each and {plural(second)} cost ${prices[1]} each. "
                f"How many dollars does {who} pay for {many(counts[0], first)} and {many(counts[1], second)}?",
                f"{who} buys {many(counts[0], first)} at ${prices[0]} each and {many(counts[1], second)} at "
                f"${prices[1]} each. How much does {who.they} spend in all?",
                f"A shop charges ${prices[0]} for a single {first} and ${prices[1]} for a single {second}. "
                f"{who} takes {many(counts[0], first)} and {many(counts[1], second)}. What is the total in dollars?",
            )
        ),
        f"For {many(counts[0], first)} {who} pays {costs[0]}.",
        f"For {many(counts[1], second)} {who.they} pays {costs[1]}.",
        f"Together that is {total}.",
        answer=total,
    )


def coupon(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(GOODS)
    count, price = dice.between(3, 12), dice.between(3, 12)
    cost = dollars(count, "*", price)
    pays = dollars(cost.value, "-", dice.between(2, cost.value - 2))
    off = cost.value - pays.value
    return solved(
        dice.choice(
            (
                f"{who} wants {many(count, item)} at ${price} each and has a coupon for ${off} off. "
                f"How many dollars does {who.they} pay?",
                f"A coupon takes ${off} off the whole bill. How much does {who} pay with it for "
                f"{many(count, item)} that cost ${price} each?",
                f"Every {item} costs ${price}. {who} buys {count} of them and gets ${off} off the sum. "
                f"What does {who.they} pay in dollars?",
            )
        ),
        f"Without the coupon {who} would pay {cost}.",
        f"With it {who.they} pays {pays}.",
        answer=pays,
    )


def packs(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(GOODS)
    size, count, price = dice.between(3, 12), dice.between(2, 12), dice.between(2, 12)
    needed = calc(size * count, "/", size)
    cost = dollars(needed.value, "*", price)
    return solved(
        dice.choice(
            (
                f"{plural(item).capitalize()} come in packs of {size}, and a pack costs ${price}. "
                f"{who} needs {size * count} of them. How many dollars does {who.they} pay?",
                f"{who} needs {many(size * count, item)}. A pack holds {size} and costs ${price}. "
                f"How much do the packs cost {who}?",
                f"For a party {who} buys {many(size * count, item)} in packs of {size}. "
                f"If a pack costs ${price}, how many dollars does {who.they} spend?",
            )
        ),
        f"{who} needs {needed.of('pack')}.",
        f"They cost {cost}.",
        answer=cost,
    )


def money_left(dice: Dice) -> Question:
    who, (first, second) = dice.person(), dice.pick(WARES, 2)
    cost, other, rest = dice.between(5, 80), dice.between(5, 80), dice.between(1, 60)
    spent = dollars(cost, "+", other)
    left = dollars(spent.value + rest, "-", spent.value)
    has = spent.value + rest
    return solved(
        dice.choice(
            (
                f"{who} has ${has}. {who.They} buys a {first} for ${cost} and a {second} for ${other}. "
                f"How many dollars does {who.they} have left?",
                f"A {first} costs ${cost} and a {second} ${other}. {who} buys both out of ${has}. "
                f"How much money is left?",
                f"Out of a purse of ${has}, {who} pays ${cost} for a {first} and ${other} for a {second}. "
                f"How many dollars stay in the purse?",
            )
        ),
        f"{who} spends {spent}.",
        f"{who.They} has {left} left.",
        answer=left,
    )


def unit_price(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(GOODS)
    price, (bought, wanted) = dice.between(2, 12), dice.pick(range(2, 13), 2)
    one = dollars(price * bought, "/", bought)
    cost = dollars(one.value, "*", wanted)
    return solved(
        dice.choice(
            (
                f"{many(bought, item).capitalize()} cost ${price * bought}. How many dollars do "
                f"{many(wanted, item)} cost at the same price?",
                f"{who} paid ${price * bought} for {many(bought, item)}. How much would {who.they} pay for "
                f"{wanted} of them?",
                f"If {bought} {plural(item)} are sold for ${price * bought}, what must {who} pay for "
                f"{many(wanted, item)}?",
            )
        ),
        f"One {item} costs {one}.",
        f"{many(wanted, item).capitalize()} cost {cost}.",
        answer=cost,
    )


def profit(dice: Dice) -> Question:
    who, item = dice.person(), dice.choice(("bracelet", "cake", "scarf", "birdhouse", "vase", "bowl", "painting"))
    count, price = dice.between(3, 12), dice.between(4, 20)
    income = dollars(count, "*", price)
    gain = dollars(income.value, "-", dice.between(2, income.value - 2))
    costs = income.value - gain.value
    return solved(
        dice.choice(
            (
                f"{who} spends ${costs} on material, makes {many(count, item)} and sells each for ${price}. "
                f"How many dollars of profit does {who.they} make?",
                f"The material for {many(count, item)} cost {who} ${costs}. {who.They} sold them all at ${price} "
                f"apiece. What was {who.their} profit in dollars?",
                f"{who} sold {many(count, item)} at ${price} each. Making them had cost ${costs}. "
                f"How much did {who.they} gain?",
            )
        ),
        f"The sale brings {income}.",
        f"The profit is {gain}.",
        answer=gain,
    )


def shared_bill(dice: Dice) -> Question:
    who, (first, second) = dice.person(), dice.pick(("pizza", "salad", "soup", "pie", "curry", "stew", "dessert"), 2)
    friends, share = dice.between(2, 9), dice.between(5, 25)
    total = friends * share
    cost = dice.between(3, total - 3)
    bill = dollars(cost, "+", total - cost)
    each = dollars(bill.value, "/", friends)
    return solved(
        dice.choice(
            (
                f"{who} and friends, {friends} people in all, share a {first} for ${cost} and a {second} for "
                f"${total - cost}. How many dollars does each of them pay?",
                f"A group of {friends} orders a {first} at ${cost} and a {second} at ${total - cost}, and {who} "
                f"splits the bill equally. How much is one share?",
                f"At dinner the {first} costs ${cost} and the {second} ${total - cost}. The {friends} guests of "
                f"{who} pay equal parts. What does each guest pay in dollars?",
            )
        ),
        f"The bill is {bill}.",
        f"Each pays {each}.",
        answer=each,
    )


KINDS = (
    single_purchase,
    change_from_bills,
    two_kinds_of_goods,
    coupon,
    packs,
    money_left,
    unit_price,
    profit,
    shared_bill,
)

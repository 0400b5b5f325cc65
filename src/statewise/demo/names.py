"""Names: made up for one problem, of so many forms that no list can be learned, and found again in a text."""

import re
from collections.abc import Sequence

from statewise.demo.wording import Dice

SHORTEST, LONGEST = 2, 10  # letters
_WORDS = """
    A After All An And Answer Apples At Besides Both Breakfast By Candles Doubled Dressing Each Every Fencing For
    Friday From Frost Going Half He Her His How I If In It Its Lemons Making Monday Muffins Notebooks Now Of On One Or
    Out Packing Peaches Pencils Pens Postcards Question Reading Sandwiches Saturday She Shower So Sunday That The Then
    There They This Thursday Tired To Today Together Toy Tuesday Two Up Water We Wednesday What With Without
"""
# What problems and answers write with a capital and is nobody, and words like it: nobody is called so.
WORDS = frozenset(_WORDS.split())
_WORD = re.compile(r"\b[A-Z]\w*")

# Parts of names; what stands there twice is drawn twice as often.
_ONSETS, _VOWELS, _MIDDLES, _ENDS = (
    parts.split()
    for parts in (
        """
            b c d f g h j k l m n p r s t v w y z b d g h j j k l l m m n n r r s s t t w br ch cl cr dr fl fr gr gl
            kh kr ph pr qu rh sc sh sl st str th tr tw wh x zh
        """,
        """
            a a a a a a e e e e e e i i i i i o o o o o u u u y ai au ay ea ee ei eo ia ie io ou oa oo ue
        """,
        """
            b b c c d d d f g g h j k k l l l l l m m m n n n n n p p r r r r r s s s s t t t t v v w x y z b d l m n
            r s t bb ck ch dd dr ff ft gh gr lb ld lf ll lm ls lv mb mm mp nd ng nk nn nt ph pp rd rg rl rm rn rr rt
            sh sk ss st th tr tt vr wn
        """,
        """
            a a a a e e e e i i o o u y y n n l l r r s s t d m k h ck ph th sh ch nd ng st x z ll nn ss tt ah ai an
            ann anna anne ard as bel bert by cy da dan den dra el ela en end er ert ett ey fred ian ic ie ille in ina
            ine ip is ith ius ka la ley lin line ly man mir na ney nie ny on or ora os ric ry sha son ta ther ton us
            vin well win ya
        """,
    )
)
_COMMON = """
    about after again apple around aside away basket better bread bright brother candle carry chance change children
    clean close cloud count cover dance different dollar door drive early earth enough evening feather field fight first
    flower forest friend garden gather glass great green ground hand hour house island kind kitchen lantern large leave
    lemon light little market measure member minute morning mother mountain nation night number ocean order other paper
    pencil people place plant question rather reason river rose round school season second share short silver sister
    slice spend spring stone store story street summer table teacher thank those thousand ticket today together train
    travel uncle under visit voice wagon walk water weather wheel white window winter woman wonder world yellow
"""
_COMMON_WORDS = _COMMON.split()
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def made_up(dice: Dice, known: Sequence[str], forbidden: re.Pattern[str]) -> str:
    """A name of 2 to 10 letters: of syllables (five in ten), of parts of names and words (four), or of any letters.

    It is no known one and none of `WORDS`, and nothing in it matches `forbidden`.
    """
    while True:
        form = dice.between(1, 10)
        if form <= 5:
            parts = _syllables(dice)
        elif form <= 9:
            parts = _front_and_back(dice, known)
        else:
            parts = [dice.choice(_LETTERS) for _ in range(dice.between(SHORTEST, 8))]
        name = "".join(parts).capitalize()
        is_taken = name in WORDS or name in known or forbidden.search(name)
        if SHORTEST <= len(name) <= LONGEST and not is_taken:
            return name


def _syllables(dice: Dice) -> list[str]:
    """Like Krivin, Quiada or Ia: most often an onset first, one to three syllables, most often an end."""
    parts = [dice.choice(_ONSETS)] if dice.between(1, 6) > 1 else []
    for _ in range(dice.choice((0, 0, 0, 1, 1, 2))):
        parts += dice.choice(_VOWELS), dice.choice(_MIDDLES)
    parts.append(dice.choice(_VOWELS))
    if dice.between(1, 4) > 1:
        end = dice.choice(_ENDS)
        parts += [dice.choice(_MIDDLES), end] if end[0] in "aeiouy" else [end]
    return parts


def _front_and_back(dice: Dice, known: Sequence[str]) -> list[str]:
    """Parts of two known names or common words, one letter at least of each: Hetima of Helen and Fatima."""
    front, back = (dice.choice(dice.choice((known, _COMMON_WORDS))) for _ in range(2))
    return [front[: dice.between(1, len(front) - 1)], back[dice.between(1, len(back) - 1) :]]


def names_in(text: str) -> list[str]:
    """The names in a problem or an answer, in their order: its capitalised words that are none of `WORDS`."""
    return [word for word in _WORD.findall(text) if word not in WORDS]

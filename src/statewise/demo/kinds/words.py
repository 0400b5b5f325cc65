"""Nouns that several kinds of problems share. A ware follows "a", never "an"."""

GOODS = ("apple", "peach", "notebook", "pencil", "sandwich", "candle", "postcard", "muffin", "toy car", "pen", "lemon")
TREASURES = ("marble", "sticker", "seashell", "stamp", "coin", "button", "bead", "trading card", "pebble", "badge")
WARES = ("coat", "tent", "lamp", "backpack", "guitar", "raincoat", "bike helmet", "radio", "kite", "drum", "jacket")

TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}
PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth"}

"""Writes customers' mails to a shop's support desk: the prompts of this example, as a JSONL file.

A draft for one job needs that job's prompts, a few hundred or more; who has real ones uses those. These are put
together from parts of our own writing: python make_prompts.py 1600 prompts.jsonl
"""

from __future__ import annotations

import json
import random
import sys

ASK = (
    "You answer mails for the shop {shop}. Write a short, friendly reply to this one.",
    "Please write the reply of {shop}'s support desk to this mail. Keep it short.",
    "A customer of {shop} wrote the mail below. Answer it politely in a few sentences.",
)
SHOPS = ("Birch & Lane", "Northlight", "The Kettle House", "Papermill", "Fern Street", "Oldbridge")
OPENINGS = (
    "Hello,",
    "Hi there,",
    "Dear support team,",
    "Good morning,",
    "Hey,",
    "To whom it may concern,",
)
PRODUCTS = (
    "electric kettle", "desk lamp", "wool blanket", "pair of hiking boots", "coffee grinder",
    "wall clock", "set of steak knives", "rain jacket", "bookshelf", "garden hose", "yoga mat",
    "bluetooth speaker", "cast-iron pan", "baby monitor", "office chair", "bicycle helmet",
    "sewing machine", "travel pillow", "water filter", "picture frame", "toaster", "suitcase",
    "tea set", "camping stove", "pet carrier", "board game", "hand mixer", "shower head",
    "phone case", "winter scarf",
)  # fmt: skip
PROBLEMS = (
    "arrived with a crack down one side",
    "has not arrived, although the tracking page says that it was delivered {when}",
    "is not the colour that I ordered; I asked for {colour}",
    "stopped working after {count} days",
    "came without the screws that the manual mentions",
    "is too small, and I would like the next size up",
    "makes a strange rattling noise when I use it",
    "was charged twice on my card",
    "smells strongly of plastic, even after I washed it {count} times",
    "came with a manual in a language that I can't read",
    "is a gift, and I would like it sent to another address",
    "costs less on your page today than when I bought it {when}",
    "has a part missing: the box was already open",
    "was to be a surprise, and your mail with the invoice went to the wrong person",
    "does not fit the plug in my country",
    "has a scratch that I only saw when the light fell on it",
)
ORDERS = (
    "The order number is {order}.",
    "My order is {order}.",
    "I ordered it {when}, number {order}.",
    "You will find it under {order}.",
)
WISHES = (
    "Can I send it back?",
    "I would like a refund, please.",
    "Could you send me a new one?",
    "What should I do now?",
    "How long will it take to sort this out?",
    "Do I have to pay for the return?",
    "Is there anything you can do before the weekend?",
    "Please tell me what you need from me.",
)
MOODS = (
    "", "", "I have been a customer for {count} years and this never happened before.",
    "I am rather disappointed.", "No hurry, but I would like to know.",
    "I have already written twice and nobody answered.", "Other than that I love it.",
)  # fmt: skip
WHEN = (
    "on Monday",
    "last Tuesday",
    "on Thursday",
    "a week ago",
    "two weeks ago",
    "yesterday",
    "on the 3rd",
)
COLOURS = ("dark blue", "green", "grey", "red", "white", "mustard yellow")
NAMES = (
    "Ann",
    "Tomas",
    "Mrs. Okafor",
    "Jo Lindqvist",
    "Priya",
    "M. Duval",
    "Sam",
    "Grace Liu",
    "Ben Hartley",
)


def make_mail(chance: random.Random) -> str:
    """Return one prompt."""

    def say(texts: tuple[str, ...]) -> str:
        return chance.choice(texts).format(
            shop=shop,
            when=chance.choice(WHEN),
            colour=chance.choice(COLOURS),
            count=chance.randint(2, 9),
            order=f"{chance.choice('ABKRT')}{chance.randint(10_000, 99_999)}",
        )

    shop = chance.choice(SHOPS)
    sentences = [
        f"The {chance.choice(PRODUCTS)} that I bought from you {say(PROBLEMS)}.",
        say(ORDERS),
        say(MOODS),
        say(WISHES),
    ]
    body = " ".join(sentence for sentence in sentences if sentence)
    return f"{say(ASK)}\n\n{chance.choice(OPENINGS)}\n{body}\n{chance.choice(NAMES)}"


def main(count: int, path: str) -> None:
    """Write `count` different prompts."""
    chance = random.Random(0)
    mails: dict[str, None] = {}
    while len(mails) < count:
        mails.setdefault(make_mail(chance))
    with open(path, "w", encoding="utf-8") as file:
        for number, mail in enumerate(mails):
            row = {"id": f"mail-{number:04d}", "domain": "support", "prompt": mail}
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

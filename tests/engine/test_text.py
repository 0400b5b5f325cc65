"""Text as it comes: whole characters, no stop string shown early, in the end what decoding all at once gives."""

from hypothesis import given, settings
from hypothesis import strategies as st

from statewise.demo.checkpoint import byte_tokenizer
from statewise.engine.text import TextStream

TOKENIZER = byte_tokenizer()


def streamed(ids, stop=()):
    stream, shown = TextStream(TOKENIZER, stop), ""
    for token in ids:
        stream.push(token)
        assert stream.text.startswith(shown), "a shown character was taken back"
        shown = stream.text[: stream.settled]
        if stream.stopped:
            break
    stream.finish()
    assert stream.text.startswith(shown)
    return stream


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_give_the_text_of_all_at_once(ids):
    assert streamed(ids).text == TOKENIZER.decode(ids)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(text, stops):
    stream = streamed(TOKENIZER.encode(text).ids, stops)
    found = [text.find(stop) for stop in stops if stop in text]
    if found:
        # A string that ends earlier is seen first, even if a longer one began before it.
        assert stream.stopped
        assert stream.text in {text[:at] for at in found}
    else:
        assert stream.text == text


def test_half_a_character_is_held_back():
    stream = TextStream(TOKENIZER)
    for token, expected in zip("é!".encode(), ["", "é", "é!"], strict=True):
        stream.push(token)
        assert stream.text == expected


def test_what_may_become_a_stop_string_is_held_back():
    stream = TextStream(TOKENIZER, ["END"])
    shown = []
    for token in b"a EN END":
        stream.push(token)
        shown.append(stream.text[: stream.settled])
    assert shown == ["a", "a ", "a ", "a ", "a EN ", "a EN ", "a EN ", "a EN "]
    assert stream.stopped


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=40), st.sets(st.integers(0, 40)))
def test_when_the_text_is_read_does_not_matter(ids, reads):
    stream, often = TextStream(TOKENIZER), TextStream(TOKENIZER)
    for i, token in enumerate(ids):
        stream.push(token)
        often.push(token)
        shown = often.text
        if i in reads:
            assert stream.text == shown
    stream.finish()
    often.finish()
    assert stream.text == often.text == TOKENIZER.decode(ids)

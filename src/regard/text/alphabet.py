"""Letters that stand for bytes in a subword vocabulary."""


def byte_alphabet() -> dict[str, int]:
    """The letter that stands for each byte, as in GPT-2.

    Printable Latin-1 is itself; the other bytes count up from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted({*range(256)} - {*printable})
    alphabet = {chr(value): value for value in printable}
    alphabet.update((chr(256 + i), value) for i, value in enumerate(others))
    return alphabet

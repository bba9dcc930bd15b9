"""Patterns that cut a text before its byte-level merges, by the names that GGUF files give them (tokenizer.ggml.pre)."""

from __future__ import annotations

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _by_case(without: str, marks: str, digits: int = 3, after: str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?") -> str:
    """Words that begin with capitals or end in small letters, as in GPT-4o. without: what the classes of letters exclude.
    digits: the longest number. after: what may end a word."""
    upper, lower = (rf"[\p{{{case}}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]" for case in (r"Lu}\p{Lt", "Ll"))
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}"
    return rf"{words}|\p{{N}}{{1,{digits}}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{marks}]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _class(ranges: str) -> str:
    """A class of characters by their code points: one, or first and last with a hyphen between."""
    ends = (item.partition("-") for item in ranges.split())
    return "".join(chr(int(first, 16)) + (f"-{chr(int(last, 16))}" if last else "") for first, _, last in ends)


# The letters with case of DeepSeek's first tokenizer.
_CASED = "A-Za-z" + _class(
    "B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F "
    "531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 "
    "1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
    "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E "
    "2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_MARKS = "!-/:-~" + _class("FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_EAST_ASIAN = _class("4E00-9FA5 800-4E00 AC00-D7FF")

# The patterns are applied in order, each to the pieces that those before it leave.
PRE_TOKENIZERS = {
    "smollm": (r"\p{N}", GPT2),
    "tekken": (_by_case("", "/", 1, ""),),  # Mistral's
    "gpt-2": (GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "llama-bpe": (_LLAMA3 % 3,),
    "seed-coder": ((_LLAMA3 % 1).replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),),
    "minicpm5": (r"\p{N}{1,3}", _LLAMA3 % 3),
    "qwen2": (_LLAMA3 % 1,),
    "exaone-moe": (  # words of letters with a space between them are one
        (_LLAMA3 % 1)
        .replace(r"\p{L}+|", r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|")
        .replace(r"]+[\r\n]*|\s*[\r\n]+", r"]+[\r\n/]?|\s*[\r\n]"),
    ),
    "deepseek-llm": (r"[\r\n]", rf"\s?[{_CASED}]+", rf"\s?[{_MARKS}]+", r"\s+$", f"[{_EAST_ASIAN}]+", r"\p{N}+"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_EAST_ASIAN}]+", r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        f"[{_class('4E00-9FA5 3040-309F 30A0-30FF')}]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "kimi-k2": (r"[\p{Han}]+|" + _by_case(r"&&[^\p{Han}]", ""),),
    "gpt-4o": (_by_case("", "/"),),
    "youtu": (
        "|".join(
            f"[{_class(ranges)}]+"
            for ranges in (
                "AC00-D7A3 3131-318E",
                "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
                "3105-312F",
                "4E00-9FA5 3040-309F 30A0-30FF",
            )
        ),
        _by_case("", "/", 1),
    ),
}
_LLAMA3_NAMES = ("llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0")  # besides llama-bpe, whose rules they share
# Other names of the same patterns, as in llama.cpp. Granite 3 has refact, Granite 4 dbrx.
_SAME = {
    "smollm": ("refact", "starcoder", "minerva-7b", "command-r"),
    "gpt-2": ("gigachat", "mellum", "trillion", "a.x-4.0", "exaone4", "olmo"),
    "llama-bpe": (*_LLAMA3_NAMES, "glm4", "glm5", "chatglm-bpe", "smaug-bpe", "dbrx"),
    "qwen2": ("deepseek-r1-qwen", "megrez", "hunyuan"),
    "deepseek-v3": ("joyai-llm", "hunyuan-dense"),
    "gpt-4o": ("kanana2", "minimax-m2"),
}
PRE_TOKENIZERS |= {name: PRE_TOKENIZERS[usual] for usual, names in _SAME.items() for name in names}
# Those whose models have read text in Unicode's normal form C alone, by their tokenizer.json; the file does not say so.
COMPOSED = ("qwen2", "command-r", "olmo")
# Those that take a word that is a token as it is.
WHOLE_WORDS = ("llama-bpe", *_LLAMA3_NAMES, "tekken", "glm4", "glm5", "minicpm5", "youtu")
# Those that put the beginning token first where the file does not say whether to, as in llama.cpp.
BEGINNING = ("llama-bpe", *_LLAMA3_NAMES, "tekken")

"""Draws the pictures of docs/concepts.md: `python docs/pictures/make.py`. The numbers of filters.svg are a model's."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

import decodestep as ds

HERE = Path(__file__).parent
INK, FAINT, BLUE, PALE, RED, GREEN = "#1c2128", "#57606a", "#4a7ebb", "#dbe7f5", "#b3261e", "#1a7f37"


def svg(width: int, height: int, *parts: str, title: str) -> str:
    style = f"text{{font:14px system-ui,sans-serif;fill:{INK}}}.f{{fill:{FAINT};font-size:12px}}.m{{font:12px monospace}}"
    head = f'<path d="M0 0L8 4L0 8z" fill="{FAINT}"/>'
    arrow = f'<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">{head}</marker>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"><title>{escape(title)}</title>'
        f'<style>{style}</style><defs>{arrow}</defs><rect width="{width}" height="{height}" rx="10" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def box(x: float, y: float, w: float, h: float, lines: list[str], fill: str = PALE) -> str:
    top = y + h / 2 - 9 * (len(lines) - 1) + 5
    texts = "".join(
        f'<text x="{x + w / 2}" y="{top + 18 * i}" text-anchor="middle">{escape(line)}</text>' for i, line in enumerate(lines)
    )
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{fill}" stroke="{BLUE}"/>{texts}'


def text(x: float, y: float, words: str, cls: str = "f", anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{cls}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{FAINT}" stroke-width="1.5" fill="none" marker-end="url(#a)"/>'


def step() -> str:
    names = [
        (["hidden state"], "one vector", "#fff"),
        (["layers"], "attention, feed-forward", PALE),
        (["logits"], "a score per token", "#fff"),
        (["penalties,", "bans"], "a few scores change", PALE),
        (["temperature,", "filters"], "the rest is dropped", PALE),
        (["score + noise"], "the largest wins", PALE),
        (["next token"], "and its text", "#fff"),
    ]
    parts, x = [], 14.0
    for i, (lines, note, fill) in enumerate(names):
        parts += [box(x, 60, 110, 60, lines, fill), text(x + 55, 140, note)]
        if i + 1 < len(names):
            parts.append(arrow(x + 111, 90, x + 131, 90))
        x += 132
    parts += [
        f'<path d="M{x - 77} 58C{x - 77} 8 70 8 69 57" stroke="{FAINT}" stroke-width="1.5" fill="none" marker-end="url(#a)"/>',
        text(480, 18, "the next step begins with it"),
        box(146, 168, 110, 44, ["cache"], "#fff"),
        arrow(201, 146, 201, 166),
        box(410, 168, 374, 44, ["seed, position, history, parameters of this row"], "#fff"),
        arrow(465, 167, 465, 146),
        arrow(597, 167, 597, 146),
        arrow(729, 167, 729, 146),
        text(474, 240, "generate and stream do all of it; Sampler begins with the logits; decode_step with typed steps"),
    ]
    return svg(948, 254, *parts, title="One decode step, from a hidden state to the next token")


def filters() -> str:
    model = ds.load()
    prompt = model.tokenizer.encode("Once upon a")
    with model.sequence(prompt) as sequence:
        logits = model.forward([(sequence, prompt[len(sequence) :])])
    names = [
        ("the model", {}),
        ("temperature 0.5", {"temperature": 0.5}),
        ("top-k 6", {"top_k": 6}),
        ("top-p 0.4", {"top_p": 0.4}),
        ("min-p 0.3", {"min_p": 0.3}),
    ]
    caption = "The next token after “Once upon a”, SmolLM2-135M-Instruct; each filter alone, on the model's distribution"
    parts = [text(14, 24, caption, "", "start")]
    shown = None
    for column, (name, chosen) in enumerate(names):
        sampler = ds.Sampler(ds.SamplingParams(**chosen, seed=1), vocab_size=model.config.vocab_size, prompt_ids=[prompt])
        (trace,) = sampler.trace(logits)
        p = trace.steps[-1].probabilities if trace.steps else np.exp(logits[0] - logits[0].max())
        p = p / p.sum()
        shown = trace.top(12)[:12] if shown is None else shown
        x = 120 + column * 166
        parts.append(text(x, 54, name, "", "start"))
        for row, token in enumerate(shown):
            y = 66 + row * 22
            if column == 0:
                parts.append(text(110, y + 13, model.tokenizer.decode([int(token)]).strip() or "␣", "m", "end"))
            if p[token] > 0:
                parts.append(f'<rect x="{x}" y="{y}" width="{max(1.0, 190 * p[token]):.1f}" height="16" rx="3" fill="{BLUE}"/>')
                parts.append(text(x + 190 * p[token] + 4, y + 13, f"{p[token]:.1%}", "f", "start"))
            else:
                parts.append(text(x, y + 13, "dropped", "f", "start").replace(FAINT, RED))
        left, others = np.count_nonzero(p), 1 - p[shown].sum()
        parts.append(text(x, 346, f"{left:,} left,", "f", "start") + text(x, 362, f"others {max(others, 0):.1%}", "f", "start"))
    return svg(960, 378, *parts, title="What temperature, top-k, top-p and min-p do to one real distribution")


def latent() -> str:
    left = [
        text(200, 26, "grouped-query attention", ""),
        box(40, 44, 320, 40, ["queries of 9 heads"]),
        box(40, 130, 96, 40, ["keys 1"]), box(152, 130, 96, 40, ["keys 2"]), box(264, 130, 96, 40, ["keys 3"]),
        box(40, 184, 96, 40, ["values 1"]), box(152, 184, 96, 40, ["values 2"]), box(264, 184, 96, 40, ["values 3"]),
        *(arrow(x, 85, x, 128) for x in (88, 200, 312)),
        text(200, 252, "three heads read one group; a position caches 6 vectors"),
    ]  # fmt: skip
    right = [
        text(680, 26, "the same, as latent attention", ""),
        box(520, 44, 320, 40, ["queries of 9 heads × what picks their group"]),
        box(520, 130, 320, 40, ["one rope key: keys 1 2 3, side by side"]),
        box(520, 184, 320, 40, ["one latent: values 1 2 3, side by side"]),
        arrow(680, 85, 680, 128),
        text(680, 252, "every head reads both; the same numbers are cached"),
    ]
    middle = [arrow(385, 134, 495, 134), text(440, 124, "exactly")]
    return svg(880, 270, *left, *middle, *right, title="Grouped-query attention as latent attention")


if __name__ == "__main__":
    for name, drawing in {"step": step(), "filters": filters(), "latent": latent()}.items():
        (HERE / f"{name}.svg").write_text(drawing, encoding="utf-8")

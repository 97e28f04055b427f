"""Attention: one mechanism a file, by name in `models.attention.catalog`.

To add one, say `mine`:

1. `models/attention/mine.py`: `class MineAttention(Attention)` with `attend(q, k, v, mask)`, plus
   `project` where q, k, v are made otherwise (`maps` says how many (d, d) maps `qkv` holds), and
   either `weights(q, k, mask)`, for `attention_map`, or `no_map`, a sentence that says why not.
   A sentence `not_causal` where a layer cannot be without later tokens.
   What counts tokens extends `AlignedAttention` and sees the real ones first, padding as zeros.
2. `MineOptions(AttentionOptions)` in the same file: rules in `__post_init__`, of which every
   whole number has a least and a largest (`check_between`); what does not
   fit a model refused in `check_fit`; `Options = MineOptions`; `__init__` takes `options`, `place`.
   Seeds are options; draw with `place.seed(seed)` and keep the draw in a buffer.
3. A row of `ATTENTIONS` in `models/attention/catalog.py`.
4. A row of the tables in `tests/models/test_attentions.py`, and the plain formula beside it.
5. A row of the table in `docs/reference/attentions.md`, and a line in CHANGELOG.md.

Nothing else knows mechanisms by name; `graph_form` may give a form that exports better.
"""

"""Makes a vocabulary; see `lingvo_pipe/input/text/train_vocab.py`."""

from __future__ import annotations

from lingvo_pipe.input.text.train_vocab import run

if __name__ == "__main__":
    run()

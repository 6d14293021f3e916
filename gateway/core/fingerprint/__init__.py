"""Whose text is this? Keyed shingles of what tenants lately sent, and answers compared with them.

A leak shows text that lies in the engine's KV memory, so what tenants sent as far back as that
memory reaches is kept, as keyed hashes of sampled 64-byte windows and never as text
(research/detection.md 3.6). ``normal`` brings text into one form, ``shingles`` hashes and samples
it, ``index`` holds the samples, ``matcher`` finds runs of them in an answer, ``verdict`` says what
a run means, ``sprt`` what many weak ones mean together, ``atoms`` handles what is shorter than a
window.
"""

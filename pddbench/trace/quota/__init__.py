"""Traces whose prefix hits are planned to the request: a histogram of hits in, a canonical trace out.

The hit of a request is drawn first and its prompt is built to have it (*quota-hit construction*):

* `spec`, `lengths`: what is asked for (a TOML file or a preset), and laws of lengths and times;
* `histogram`: how many requests each bucket gets, and where in its bucket each hit lies, so that the mean is met;
* `structure`: sessions, lines of turns, sub-agents, system prompts, and which turn is a low-hit one;
* `prompts`: from hits to lengths, in one pass along the lines of turns;
* `outputs`: replies that fit between a prompt and the next one (sorted matching);
* `solve`: repeats the three above until the means are met; `times`, `generate`: starts, gaps, rows in order of start.

Why the hits are exact. On the basis `prompt` only prompts are cached. Every prompt is the first `P` tokens of one
earlier prompt, or an earlier prompt followed by its reply, then tokens that occur nowhere else. So the longest prefix
that any earlier prompt shares with it is exactly `P`: not less, because that prompt is cached, and not more, because
position `P` holds a token of a reply (never cached: no second turn continues the same reply) or one that is new.
"""

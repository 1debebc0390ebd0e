"""How long does it take? Clock, step meter, summaries, comparison and watched runs."""

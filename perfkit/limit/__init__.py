"""How fast could it be? What a machine reaches at best, what a step needs, and the lower bound.

Three parts that know nothing of each other: the rates of a machine, measured once
(:mod:`~perfkit.limit.measured`, kept by :mod:`~perfkit.limit.kept`) or from a data sheet
(:mod:`~perfkit.limit.datasheet`); the work of one operator, counted from its shapes
(:mod:`~perfkit.limit.work`); and the roofline, which divides one by the other
(:mod:`~perfkit.limit.roofline`). Traces and steps are not known here.
"""

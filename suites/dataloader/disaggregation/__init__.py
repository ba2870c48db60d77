"""A disaggregated loader after OVERLORD (MegaScale-Data, arXiv 2504.09844), on Ray actors.

Every call to an actor is a function of its arguments and of the specification; what an actor keeps is a
cache. So an actor that died may start anew and continue bit for bit.
"""

"""Schedules: jobs that are submitted by the clock, and judged against what was accepted before.

``times`` says when one is due; ``firing`` submits what is due, once; ``settling`` judges what has ended.
"""

"""Schedules: jobs submitted by cron expressions, and compared with an accepted baseline.

``times`` says when one is due; ``firing`` submits what is due, once; ``settling`` judges what has ended.
"""

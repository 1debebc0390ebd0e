"""Lesson 17: which GPU, and when is it cheaper to buy one?"""

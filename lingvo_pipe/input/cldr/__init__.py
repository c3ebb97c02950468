"""Sentences in many languages, made from Unicode CLDR."""

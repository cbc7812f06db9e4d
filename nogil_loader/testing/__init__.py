"""Fakes and sample media that users and the tests share."""

class MovieLens:
    pass

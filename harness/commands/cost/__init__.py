"""`python -m harness.cost`: what do tokens cost at recorded throughputs?"""

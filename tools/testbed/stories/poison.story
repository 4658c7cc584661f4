# Poison in the middle of a partition: what is good takes effect, what is not has a letter.
a advertiser create
a advertiser submit_offer
a owner accept
a watcher address_ready
b advertiser create
b advertiser submit_offer
b owner accept
b watcher address_ready
+ a watcher deposit 1 0.5 TON
+ a watcher garbage
+ b watcher deposit 1 0.5 TON
+ b forger deposit 9 0.5 TON
+ a watcher deposit 2 0.5 TON
b watcher deposit 2 0.5 TON
a show
b show
# One transaction, claimed with two amounts: a conflict.
a watcher deposit 1 0.6 TON
# More than was asked for: the surplus goes back.
a watcher deposit 3 0.3 TON

# The post is deleted too early: a dispute, which the operator settles for the advertiser.
a advertiser create
a advertiser submit_offer
a owner accept
a watcher address_ready
a watcher deposit 1 1 TON
a owner submit_draft
a advertiser approve
a owner publish_now
a publisher published
a verifier check 1 passed
a verifier check 2 failed
# The escrow is frozen: a late success releases nothing.
a day later
a verifier passed
# By the queue nobody is an operator.
a stranger resolve_for_owner it is mine
a operator resolve_for_advertiser the post was deleted
a show
# What the chain returned is held against the order.
a refunder refunded 1 0.4 TON
a refunder refunded 2 1 TON
a show
# What the workers and the parties were told.
a published
